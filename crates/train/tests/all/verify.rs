//! `verify` for what an experiment can ask: every kind of mask, documents of the data, weights, layouts, any length.

use annulus_plan::Plan;
use annulus_train::verify::{Line, verify};
use annulus_train::{Processors, Setup};

use crate::common::Place;

/// Checks on the CPU as [`check_on`] does.
#[track_caller]
fn check(plan: &Plan) -> [usize; 2] {
    check_on(plan, 3, Processors::default())
}

/// Checks that every line is within its limit; returns the number of lines of the experiment's own way, and of all.
#[track_caller]
fn check_on(plan: &Plan, most: usize, processors: impl Into<Processors>) -> [usize; 2] {
    let lines = verify(plan, &Setup::new(plan, 3).on(processors), most, &mut |_| ()).unwrap();
    let mut counts = [0, 0];
    for line in &lines {
        if let Line::Error { own, error, limit, .. } = line {
            assert!(error <= limit, "{line:?}");
            counts = [counts[0] + usize::from(*own), counts[1] + 1];
        }
    }
    counts
}

#[test]
fn sparse_masks_packed_documents_and_weights_are_exact() {
    let place = Place::new();
    let cases: [&[(&str, &str)]; 5] = [
        &[("attention.documents", "data"), ("attention.window", "5"), ("attention.sinks", "2")],
        &[("attention.documents", "[13, 1, 15]"), ("attention.prefix", "4")],
        &[("attention.pattern", "strided"), ("attention.stride", "5")],
        &[("attention.window", "4"), ("attention.dilation", "3")],
        &[
            ("attention.window", "4"),
            ("attention.global", "[0-1, 20]"),
            ("attention.padding", "27"),
        ],
    ];
    let size = [("data.tokens", "29"), ("model.num_hidden_layers", "1"), ("mesh.sequence", "3")];
    let splits: [&[(&str, &str)]; 2] = [
        &[
            ("attention.strategy", "striped"),
            ("attention.stripe", "2"),
            ("mesh.weights", "[3, 0, 2]"),
        ],
        &[("attention.strategy", "megatron"), ("attention.exchange", "all-gather")],
    ];
    for (index, mask) in cases.into_iter().enumerate() {
        let plan = place.plan(&[&size, splits[index % 2], mask].concat());
        let [own, all] = check(&plan);
        assert!(own >= 8 && all > 8 * 20, "{mask:?}: {own} of {all}");
    }
}

/// Layers that slide beside others: each layer group by its own strategy, and all in the model.
#[test]
fn layers_that_slide_beside_others_are_exact() {
    let place = Place::new();
    let size = [("data.tokens", "31"), ("attention.sliding.layers", "[0]")];
    let window = [("attention.sliding.window", "6"), ("attention.sinks", "2")];
    let pairs: [&[(&str, &str)]; 4] = [
        &[
            ("attention.strategy", "megatron"),
            ("attention.sliding.strategy", "halo"),
            ("mesh.sequence", "3"),
        ],
        &[
            ("attention.strategy", "ring"),
            ("attention.layout", "striped"),
            ("attention.stripe", "2"),
            ("attention.sliding.strategy", "ulysses"),
            ("mesh.sequence", "2"),
            ("mesh.weights", "[2, 1]"),
        ],
        &[
            ("attention.strategy", "ulysses"),
            ("attention.sliding.strategy", "ring"),
            ("attention.sliding.backward", "queries"),
            ("attention.documents", "data"),
            ("mesh.sequence", "2"),
        ],
        &[
            ("attention.strategy", "double-ring"),
            ("attention.sliding.strategy", "all-gather"),
            ("attention.layout", "balanced"),
            ("attention.stripe", "3"),
            ("mesh.sequence", "3"),
        ],
    ];
    for pair in pairs {
        let [own, all] = check(&place.plan(&[&size, &window, pair].concat()));
        assert!(own >= 8 && all > 8 * 20, "{pair:?}: {own} of {all}");
    }
}

/// Verification is in f32 though the experiment's comm dtype is narrower; a way that is its strategy's default is verified once.
#[test]
fn the_split_is_verified_not_the_wire() {
    let place = Place::new();
    let split = [("attention.strategy", "ring"), ("mesh.sequence", "2"), ("data.tokens", "15")];
    let narrow = [("attention.wire.key_value", "bf16"), ("model.num_hidden_layers", "1")];
    assert_eq!(check(&place.plan(&[split, [narrow[0], narrow[1], ("seed", "1")]].concat()))[0], 0);
}

#[test]
fn a_sequence_that_dense_attention_cannot_hold_is_refused() {
    let place = Place::new();
    let plan = place.plan(&[("data.tokens", "1M")]);
    let refused = verify(&plan, &Setup::new(&plan, 2), 2, &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("1048576 tokens"), "{refused}");
    assert!(refused.hint().unwrap().contains("data.tokens="), "{refused:?}");
}

/// The limits are those of f32: a model of bf16 is verified in f32. Where each query sees one key, gradients of queries and keys are 0.
#[test]
fn models_of_bf16_and_masks_of_one_key_are_exact() {
    let place = Place::new();
    let cases = [("model.dtype", "bf16"), ("attention.window", "1")];
    for case in cases {
        let size = [("data.tokens", "23"), ("mesh.sequence", "2"), ("attention.strategy", "ring")];
        let [_, all] = check(&place.plan(&[&size[..], &[case]].concat()));
        assert!(all > 8 * 20, "{case:?}: {all}");
    }
}

/// Every strategy on a GPU, in f32 and in 16 bits: ranks that share it, masks of several views, documents. What no kernel computes is
/// skipped.
#[cfg(any(feature = "cuda", feature = "emulator"))]
#[test]
fn strategies_are_exact_with_gpu_kernels() {
    use crate::kernels::{SHAPE, processor};

    let place = Place::new();
    let size = [("data.tokens", "37"), ("mesh.sequence", "2"), ("attention.strategy", "ring")];
    let cases: [(u32, &str, &[(&str, &str)]); 3] = [
        (80, "f32", &[("attention.pattern", "strided"), ("attention.stride", "5")]),
        (90, "bf16", &[("attention.window", "9"), ("attention.global", "[0-1, 20]")]),
        (90, "bf16", &[("attention.documents", "data"), ("attention.window", "1")]),
    ];
    for (architecture, dtype, mask) in cases {
        let dtype = [("model.dtype", dtype), ("model.num_hidden_layers", "1")];
        let plan = place.plan(&[&SHAPE[..], &size, mask, &dtype].concat());
        let [_, all] = check_on(&plan, 2, processor(architecture));
        assert!(all > 8 * 12, "{mask:?}: {all}");
    }
}
