//! Memory by class: the ranks of a step hold what was planned, and as much each on any number of ranks. A test binary of its own, because
//! its allocator counts.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../all/common.rs"]
mod common;
mod continued;
mod few_rows;
mod many_views;
mod support;

use std::alloc::System;

use annulus_memory::{ByClass, Class, Counting, on_behalf_of};
use annulus_plan::Plan;
use annulus_train::{Measured, Memory, measure};
use common::Place;
use support::*;

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting::new(System);

/// Queries and keys as wide as the model, in one layer: what attention's half recomputes is the peak.
#[test]
fn queries_and_keys_are_freed_as_they_are_rotated() {
    let wide = [
        ("model.num_key_value_heads", "4"),
        ("model.num_hidden_layers", "1"),
        ("memory.mlp_chunk", "128"),
        ("memory.loss_chunk", "64"),
    ];
    check(&place(), 2, "striped", &wide);
}

/// Heads of several sequences that are lent to other ranks are copied.
#[test]
fn heads_of_several_sequences_are_held_as_planned() {
    let place = place();
    // Few rows: heads that are lent grow with them as everything that is compared does.
    let several = [
        ("data.batch", "4"),
        ("memory.micro_batch", "4"),
        ("model.num_key_value_heads", "4"),
        ("data.tokens", "1024"),
    ];
    for strategy in ["ring", "ulysses", "usp", "all-gather"] {
        let memory = measured(&plan(&place, 4, strategy, &several));
        let fullest = |of: fn(&Memory) -> &ByClass| {
            memory.iter().map(|rank| of(rank)[Class::KeyValue]).max().unwrap() as f64
        };
        let off = fullest(|rank| &rank.measured) / fullest(|rank| &rank.planned) - 1.0;
        assert!(off.abs() < LIMIT, "{strategy}: {off}");
    }
}

#[test]
fn order_free_sums_of_micro_batches_are_held_in_slices() {
    let place = place();
    let strict = [
        ("reproducible", "strict"),
        ("data.batch", "2"),
        ("memory.micro_batch", "1"),
        ("model.hidden_size", "256"),
    ];
    for ranks in [2, 3] {
        let memory = measured(&plan(&place, ranks, "striped", &strict));
        for Memory { rank, measured, planned, together, planned_together } in memory {
            let gradients = [measured, planned].map(|classes| classes[Class::Gradients]);
            // Less, where ranks keep pace: a gradient is held until the others have read their slices.
            for [measured, planned] in [gradients, [together, planned_together]] {
                let most = planned as f64 * (1.0 + LIMIT);
                assert!(
                    (measured as f64) < most,
                    "rank {rank} of {ranks}: {measured} of {planned}"
                );
            }
        }
    }
}

#[test]
fn one_rank_holds_what_was_planned() {
    let place = place();
    let cases: &[&[(&str, &str)]] = &[
        &[],
        &[("memory.recompute", "none")],
        &[("memory.mlp_chunk", "256")],
        &[("memory.recompute", "none"), ("memory.mlp_chunk", "256")],
        &[("model.tie_word_embeddings", "true"), ("model.num_hidden_layers", "1")],
        &[("model.num_key_value_heads", "4"), ("memory.mlp_chunk", "256")],
        &[("model.model_type", "qwen3")],
        &[("model.model_type", "qwen3"), ("memory.recompute", "none")],
        &[("model.dtype", "bf16")],
        &[("model.dtype", "bf16"), ("memory.recompute", "none")],
        &[("model.dtype", "bf16"), ("memory.mlp_chunk", "256")],
        &[("model.vocab_size", "5000"), ("memory.mlp_chunk", "256")],
        &[("model.dtype", "bf16"), ("model.vocab_size", "5000"), ("memory.mlp_chunk", "256")],
        &[("data.batch", "4"), ("memory.micro_batch", "2")],
        &[
            ("data.batch", "8"),
            ("memory.micro_batch", "2"),
            ("model.vocab_size", "5000"),
            ("memory.mlp_chunk", "256"),
        ],
        &[("memory.offload", "activations"), ("model.num_hidden_layers", "5")],
        &[("memory.offload", "optimizer"), ("model.num_hidden_layers", "3")],
        &[
            ("memory.offload", "both"),
            ("model.num_hidden_layers", "4"),
            ("memory.recompute", "none"),
        ],
    ];
    for changes in cases {
        check(&place, 1, "local", changes);
    }
}

/// On any machine: caches decide how many rows of a product are packed at a time, and cores how often.
#[test]
fn any_caches_and_cores_hold_what_was_planned() {
    let place = place();
    let changes = [("memory.mlp_chunk", "1024"), ("data.batch", "4")];
    let plan = plan(&place, 1, "local", &changes);
    let plans =
        [256 << 10, 1 << 20, 2 << 20, 4 << 20].map(|second| (second, plan_for(&plan, second)));
    for (second, plan) in &plans {
        for cores in [1, 2, 64] {
            let _one = alone();
            let mut memory = measure_memory(plan, 2, cores);
            if cores > 2 {
                // Attention's workers allocate when they begin: with fewer cores than workers, not all do.
                for rank in &mut memory {
                    assert!(
                        rank.measured[Class::Workspace] <= rank.planned[Class::Workspace],
                        "{rank:?}"
                    );
                    rank.measured =
                        rank.measured.with(Class::Workspace, rank.planned[Class::Workspace]);
                    assert!(rank.together <= rank.planned_together, "{rank:?}");
                    rank.together = rank.planned_together;
                }
            }
            hold(&memory, &format!("a second cache of {second}, {cores} cores"));
        }
    }
}

/// Beside frozen weights there are no gradients, no moments and, in 16 bits, no masters.
#[test]
fn adapters_hold_what_was_planned() {
    let place = place();
    for dtype in ["f32", "bf16"] {
        let steps = [("schedule.stop", "1"), ("schedule.warmup", "0"), ("data.tokens", "64")];
        let own = [BASE, &steps, &[("model.dtype", dtype)]].concat();
        let base = {
            let _one = alone();
            place.run_in(&format!("base-{dtype}"), &own).checkpoint.unwrap()
        };
        let model = format!("{{ path: {}, dtype: {dtype}, allow_longer: true }}", base.display());
        let lora = "{ rank: 8, targets: [q_proj, v_proj, down_proj] }";
        let besides = "{ rank: 8, dropout: 0.1, train: [norms, embeddings, head] }";
        for lora in [lora, besides] {
            for (ranks, strategy) in [(1, "local"), (2, "striped")] {
                for more in [("memory.recompute", "none"), ("memory.mlp_chunk", "256")] {
                    let model = [("model", model.as_str()), ("lora", lora), more];
                    let base = BASE.iter().filter(|(key, _)| !key.starts_with("model."));
                    let base: Vec<_> = base.copied().collect();
                    check_with(&place, &base, ranks, strategy, &model);
                }
            }
        }
    }
}

#[test]
fn ranks_hold_what_was_planned() {
    let place = place();
    for (ranks, strategy) in [(2, "ring"), (2, "striped"), (4, "megatron"), (3, "all-gather")] {
        for changes in [&[][..], &[("memory.recompute", "none")], &[("memory.mlp_chunk", "256")]] {
            check(&place, ranks, strategy, changes);
        }
    }
    check(&place, 4, "striped", &[("model.dtype", "bf16"), ("model.num_key_value_heads", "2")]);
    let normed = [("model.model_type", "qwen3")];
    check(&place, 2, "ring", &normed);
    check(&place, 2, "ring", &[&normed[..], &[("memory.recompute", "none")]].concat());
    check(&place, 2, "ring", &[&normed[..], &[("model.dtype", "bf16")]].concat());
}

/// A sum of slices takes the memory of one more, however many ranks there are.
#[test]
fn sums_of_many_ranks_are_planned() {
    let place = place();
    let large = [
        ("model.vocab_size", "8192"),
        ("memory.loss_chunk", "16"),
        ("model.num_hidden_layers", "1"),
    ];
    for ranks in [6, 8] {
        for Memory { rank, measured, planned, .. } in measured(&plan(&place, ranks, "ring", &large))
        {
            let [found, most] = [measured, planned].map(|classes| classes[Class::Gradients]);
            let bound = most as f64 * (1.0 + LIMIT);
            assert!(found as f64 <= bound, "rank {rank} of {ranks}: {found} of {most}");
        }
    }
}

/// All scores of a rank's queries are kept, however few of a tile are seen.
#[test]
fn kept_scores_are_planned() {
    let place = place();
    check(&place, 1, "li-ring", &[]);
    check(&place, 4, "li-ring", &[("attention.mask", "full")]);
    check(&place, 4, "li-ring", &[("attention.layout", "striped")]);
    check(&place, 3, "li-ring", &[("attention.mask", "full"), ("memory.recompute", "none")]);
    check(&place, 2, "li-ring", &[("model.dtype", "bf16"), ("model.num_key_value_heads", "2")]);
}

/// The strategies among which long runs choose, and the one that keeps scores, on four ranks: bytes exact, memory of all classes at once
/// within a tenth.
#[test]
fn four_ranks_hand_over_and_hold_what_was_planned() {
    let place = place();
    for strategy in ["ring", "striped", "megatron", "all-gather", "ulysses", "li-ring"] {
        let heads: &[&str] = if strategy == "ulysses" { &["1", "4"] } else { &["1"] };
        for heads in heads {
            let plan = plan(&place, 4, strategy, &[("model.num_key_value_heads", *heads)]);
            hand_over_and_hold(&plan, &format!("{strategy}, {heads}"));
        }
    }
}

/// The reference kernel computes in f64.
#[test]
fn the_reference_kernel_holds_what_was_planned() {
    let place = place();
    let changes = [("attention.kernel", "reference"), ("model.num_hidden_layers", "1")];
    for (ranks, strategy) in [(1, "local"), (2, "ring")] {
        check(&place, ranks, strategy, &changes);
    }
}

/// Layers that slide beside others: bytes exact, memory within a tenth, whichever layers come first and last.
#[test]
fn layers_that_differ_hand_over_and_hold_what_was_planned() {
    let place = place();
    for (strategy, sliding, layers, recompute) in [
        ("megatron", "halo", "[0-1, 3]", "layer"),
        ("ring", "ulysses", "[1]", "none"),
        ("all-gather", "ring", "[0]", "layer"),
        ("ulysses", "all-gather", "[3]", "none"),
    ] {
        let changes = [
            ("model.num_hidden_layers", "4"),
            ("model.num_key_value_heads", "4"),
            ("attention.sliding.layers", layers),
            ("attention.sliding.window", "300"),
            ("attention.sliding.strategy", sliding),
            ("memory.recompute", recompute),
        ];
        let plan = plan(&place, 4, strategy, &changes);
        hand_over_and_hold(&plan, &format!("{strategy} and {sliding}, {recompute}"));
    }
}

/// Activations and KV under way of the rank that has most.
fn fullest(memory: &[Memory]) -> u64 {
    let both = |peak: &ByClass| peak[Class::Activations] + peak[Class::KeyValue];
    memory.iter().map(|rank| both(&rank.measured)).max().unwrap()
}

#[test]
fn a_context_that_grows_with_the_ranks_takes_no_more_of_any() {
    let place = place();
    for changes in [&[][..], &[("memory.recompute", "none")]] {
        let held = [1, 2, 4, 8].map(|ranks| {
            let strategy = if ranks == 1 { "local" } else { "striped" };
            let memory = measured(&plan(&place, ranks, strategy, changes));
            (fullest(&memory), memory.iter().map(|rank| rank.together).max().unwrap())
        });
        println!("activations and key/value, all at once; 1, 2, 4, 8 ranks, {changes:?}: {held:?}");
        for split in [held.map(|(both, _)| both), held.map(|(_, together)| together)] {
            // The first of several ranks counts the weights that they share, and holds less of everything else.
            let no_more = |pair: &[u64]| pair[1] as f64 <= (1.0 + FLAT) * pair[0] as f64;
            assert!(split[1..].windows(2).all(no_more), "{changes:?}: {held:?}");
        }
    }
}

/// Tables of locks that other runs' threads let grow are never freed, and count for whoever they grew under.
#[test]
fn what_is_left_of_earlier_runs_does_not_count() {
    let place = place();
    let plan = plan(&place, 1, "local", &[]);
    let _one = alone();
    let left = on_behalf_of(0, Class::Workspace, || vec![1u8; 4 << 20]);
    hold(&measure_memory(&plan, 2, 1), &format!("beside {} bytes", left.len()));
}

#[test]
fn a_run_writes_down_what_every_rank_held() {
    let _one = alone();
    let place = Place::new();
    let split = [("mesh.sequence", "2"), ("attention.strategy", "ring"), ("schedule.stop", "2")];
    let plan = place.plan(&split);
    let outcome = place.run(&split).unwrap();
    let text = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let of = |tag: &str| -> Vec<u64> { serde_json::from_value(line[tag].clone()).unwrap() };
    for (name, planned) in plan.ranks[0].peak_by_class.named() {
        let held = of(&format!("memory/{name}"));
        assert_eq!(held.len(), 2, "{name}");
        // So few ids are below what is counted.
        let counted = match name {
            "data" => true,
            // The first rank counts what all share.
            "weights" => held[0] > 0 && held[1] == 0,
            _ => held.iter().all(|bytes| *bytes > 0),
        };
        assert!(counted && planned > 0, "{name}: {held:?}");
    }
    let state = plan.ranks[0].peak_by_class[Class::Optimizer];
    assert!(of("memory/optimizer").iter().all(|bytes| bytes.abs_diff(state) < state / 10));
}

/// Rank 0 holds a copy of what it saves while training goes on.
#[test]
fn a_copy_of_what_is_saved_is_planned() {
    let place = place();
    for dtype in ["f32", "bf16"] {
        let changes = [("background_saves", "true"), ("model.dtype", dtype)];
        let plan = plan(&place, 2, "ring", &changes);
        let without = plan_with(&place, BASE, 2, "ring", &changes[1..]);
        let held = |plan: &Plan, rank: usize, class| plan.ranks[rank].peak_by_class[class];
        let copied =
            |plan, rank| held(plan, rank, Class::Weights) + held(plan, rank, Class::Optimizer);
        let elements = plan.shape.elements();
        let bytes = if dtype == "f32" { 12 } else { 2 + 4 + 8 };
        assert_eq!(copied(&plan, 0) - copied(&without, 0), bytes * elements, "{dtype}");
        assert_eq!(copied(&plan, 1), copied(&without, 1), "{dtype}");
    }
}

/// Tensor-parallel ranks hold parts of weights and their state, and of the rows between layers.
#[test]
fn tensor_parallel_ranks_hold_what_is_planned() {
    let place = place();
    for (tensor, sequence, changes) in [
        ("2", 1, &[][..]),
        ("2", 2, &[("memory.recompute", "none")]),
        ("4", 1, &[("data.batch", "2"), ("memory.micro_batch", "1")]),
        // A vocabulary that does not divide.
        ("2", 2, &[("model.vocab_size", "257")]),
    ] {
        let heads = ("model.num_key_value_heads", tensor);
        let parted = [("mesh.tensor", tensor), heads, ("model.vocab_size", "264")];
        let strategy = if sequence == 1 { "local" } else { "ring" };
        let plan = plan(&place, sequence, strategy, &[&parted, changes].concat());
        let _one = alone();
        let (mut all, what) = (Vec::new(), format!("{tensor} x {sequence}, {changes:?}"));
        for Measured { memory, planned_bytes, bytes, .. } in measure(&plan, 2, 1).unwrap() {
            assert_eq!(bytes, planned_bytes, "{what}, rank {}: bytes", memory.rank);
            all.push(memory);
        }
        hold(&all, &what);
    }
}

/// Checks that ranks hand over exactly the bytes that were planned, and hold as much at once, within [`LIMIT`].
#[track_caller]
fn hand_over_and_hold(plan: &Plan, what: &str) {
    let _one = alone();
    for Measured { memory, bytes, planned_bytes, .. } in measure(plan, 2, 1).unwrap() {
        assert_eq!(bytes, planned_bytes, "{what}: bytes of rank {}", memory.rank);
        let off = memory.together as f64 / memory.planned_together as f64 - 1.0;
        assert!(off.abs() < LIMIT, "{what}: {:+.1} % off its plan: {memory:?}", 100.0 * off);
    }
}
