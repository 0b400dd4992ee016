//! Few rows beside wide weights: copies of weights and their gradients are then most of what a rank holds.

use annulus_memory::Class;
use annulus_train::Memory;

use crate::support::{BASE, LIMIT, alone, measured, place, plan_with};

/// One layer as wide as those that are used, so that a weight outweighs the rows.
const WIDE: &[(&str, &str)] = &[
    ("model.num_hidden_layers", "1"),
    ("model.hidden_size", "1024"),
    ("model.intermediate_size", "2048"),
    ("model.num_key_value_heads", "2"),
];

/// Rows per rank.
const FEW: [&str; 3] = ["16", "64", "256"];

/// Bytes of what takes as much whatever the sizes are: what a process makes once is counted for the rank that needed it first.
const ALWAYS: u64 = 1 << 18;

/// Checks that no rank holds more than was planned, and little less: of gradients and at once several ranks may hold less, since whole
/// gradients are held until the others have read their slices, and a rank that is ahead a little more.
#[track_caller]
fn bound(memory: &[Memory], what: &str) {
    let (least, ahead) = if memory.len() > 1 { (-0.5, LIMIT) } else { (-LIMIT, 0.0) };
    for Memory { rank, measured, planned, together, planned_together } in memory {
        let of = |class: Class| (measured[class], planned[class]);
        let (activations, gradients) = (of(Class::Activations), of(Class::Gradients));
        let at_once = (*together, *planned_together);
        for (name, (measured, planned), least, most) in [
            ("activations", activations, -LIMIT, 0.0),
            ("gradients", gradients, least, ahead),
            ("at once", at_once, least, ahead),
        ] {
            let off = measured as f64 / planned as f64 - 1.0;
            let most = most + ALWAYS as f64 / planned as f64;
            let what = format!("{what}, rank {rank}: {name}, {measured} of {planned}");
            assert!(off <= most && off > least, "{what}");
        }
    }
}

#[test]
fn few_rows_of_wide_layers_hold_what_was_planned() {
    let place = place();
    for dtype in ["f32", "bf16"] {
        for rows in FEW {
            for more in [&[][..], &[("memory.recompute", "none")], &[("memory.mlp_chunk", "8")]] {
                let few = [("model.dtype", dtype), ("data.tokens", rows)];
                let changes = [WIDE, &few, more].concat();
                let plan = plan_with(&place, BASE, 1, "local", &changes);
                bound(&measured(&plan), &format!("{dtype}, {rows} rows {more:?}"));
            }
        }
    }
}

#[test]
fn few_rows_of_several_layers_and_ranks_hold_what_was_planned() {
    let place = place();
    for dtype in ["f32", "bf16"] {
        for (ranks, strategy, tokens) in
            [(1, "local", "64"), (2, "ring", "128"), (4, "striped", "64")]
        {
            let few = [
                ("model.dtype", dtype),
                ("data.tokens", tokens),
                ("model.hidden_size", "512"),
                ("model.num_hidden_layers", "2"),
            ];
            let plan = plan_with(&place, BASE, ranks, strategy, &[WIDE, &few].concat());
            bound(&measured(&plan), &format!("{dtype}, {ranks} ranks of {tokens} rows"));
        }
    }
}

/// Beside frozen weights nothing is trained of them, but all are read.
#[test]
fn few_rows_of_adapters_hold_what_was_planned() {
    let place = place();
    let steps = [("schedule.stop", "1"), ("schedule.warmup", "0"), ("data.tokens", "16")];
    let own = [BASE, WIDE, &steps, &[("model.dtype", "bf16")]].concat();
    let base = {
        let _one = alone();
        place.run_in("wide", &own).checkpoint.unwrap()
    };
    for dtype in ["f32", "bf16"] {
        let model = format!("{{ path: {}, dtype: {dtype}, allow_longer: true }}", base.display());
        for rows in FEW {
            let lora = [("model", model.as_str()), ("lora", "{ rank: 4 }"), ("data.tokens", rows)];
            let base = BASE.iter().filter(|(key, _)| !key.starts_with("model."));
            let base: Vec<_> = base.copied().collect();
            let plan = plan_with(&place, &base, 1, "local", &lora);
            bound(&measured(&plan), &format!("adapters, {dtype}, {rows} rows"));
        }
    }
}
