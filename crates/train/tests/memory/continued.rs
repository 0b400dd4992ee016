//! Sums of gradients that the tiles of attention continue, and their way to their owners.

use annulus_train::Memory;

use crate::support::{ROWS, measured, place, plan};

/// Attention is most of what few weights with many rows hold: where tiles continue sums of gradients, where these go straight to their
/// owners, and where ranks put heads together. No rank holds more than was planned, beyond [`ALWAYS`].
#[test]
fn sums_that_tiles_continue_are_planned() {
    const ALWAYS: u64 = 1 << 16;
    let place = place();
    let small = [
        ("model.num_hidden_layers", "1"),
        ("model.hidden_size", "64"),
        ("model.intermediate_size", "64"),
        ("model.num_key_value_heads", "4"),
        ("memory.mlp_chunk", "64"),
        ("memory.loss_chunk", "64"),
    ];
    for (ranks, strategy, route, wire, least) in [
        (2, "striped", "queries", "f32", -0.05),
        (2, "striped", "queries", "bf16", -0.05),
        (4, "striped", "auto", "f32", -0.05),
        (4, "striped", "travelling", "bf16", -0.2),
        (4, "striped", "direct", "f32", -0.3),
        (2, "ulysses", "auto", "f32", -0.3),
        (4, "all-gather", "auto", "f32", -0.1),
    ] {
        let tokens = (2 * ROWS * ranks).to_string();
        let own = [
            ("attention.backward", route),
            ("attention.wire.gradient", wire),
            ("data.tokens", &tokens),
        ];
        let plan = plan(&place, ranks, strategy, &[&small[..], &own].concat());
        for Memory { rank, together, planned_together, .. } in measured(&plan) {
            let off = together as f64 / planned_together as f64 - 1.0;
            let what =
                format!("{strategy} {route} {wire}, rank {rank}: {together} of {planned_together}");
            assert!(together <= planned_together + ALWAYS && off > least, "{what}");
        }
    }
}
