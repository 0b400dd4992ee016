//! Masks that take many views of a tile, as those of patterns.

use annulus_memory::Class;
use annulus_train::Memory;

use crate::support::{measured, place, plan};

/// Under masks that take many views of a tile, queries have several running states, and one view is made at a time.
#[test]
fn masks_of_many_views_hold_what_was_planned() {
    let place = place();
    let global: Vec<String> = (0..24).map(|index| (37 * index).to_string()).collect();
    let global = format!("[{}]", global.join(", "));
    let strict = ("reproducible", "strict");
    let cases: &[&[(&str, &str)]] = &[
        &[("attention.pattern", "strided"), ("attention.stride", "512")],
        &[("attention.pattern", "strided"), ("attention.stride", "64"), ("model.dtype", "bf16")],
        &[("attention.window", "16"), ("attention.dilation", "128")],
        &[
            ("attention.pattern", "strided"),
            ("attention.stride", "3"),
            ("model.num_key_value_heads", "4"),
            ("model.num_hidden_layers", "1"),
            ("model.vocab_size", "264"),
        ],
        &[
            ("attention.window", "300"),
            ("attention.dilation", "4"),
            ("model.num_key_value_heads", "4"),
            ("model.num_hidden_layers", "1"),
        ],
        &[("attention.pattern", "fixed"), ("attention.stride", "64"), ("attention.columns", "16")],
        &[("attention.window", "16"), ("attention.global", &global)],
        &[strict, ("attention.pattern", "fixed"), ("attention.stride", "64")],
        &[strict, ("attention.pattern", "strided"), ("attention.stride", "64")],
    ];
    for changes in cases {
        for (ranks, strategy) in [(1, "local"), (2, "striped")] {
            let plan = plan(&place, ranks, strategy, changes);
            for Memory { rank, measured, planned, together, planned_together } in measured(&plan) {
                let workspace = [measured, planned].map(|classes| classes[Class::Workspace]);
                for [measured, planned] in [workspace, [together, planned_together]] {
                    let off = measured as f64 / planned as f64 - 1.0;
                    let what = format!("{strategy} {changes:?}, rank {rank}");
                    // The buffers of workers are planned as if all were in use.
                    assert!(off > -0.3 && off < 0.06, "{what}: {measured} of {planned}");
                }
            }
        }
    }
}
