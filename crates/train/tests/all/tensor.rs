//! Tensor parallelism: losses, gradients and files equal those of one rank up to the order of sums, and bits repeat from run to run.

use std::collections::BTreeMap;
use std::path::Path;

use annulus_data::Sequence;
use annulus_model::Llama;
use annulus_sequence::Strategy;
use annulus_train::{
    GenerateRequest, Outcome, Sampling, ScoreOutputs, Setup, generate, judge, score,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{Place, difference, losses, state};

/// Gradients stay as computed: nothing is clipped, and a first moment is a tenth of a gradient.
const PLAIN: [(&str, &str); 7] = [
    ("model.num_attention_heads", "8"),
    ("model.num_key_value_heads", "4"),
    ("optimizer.clip", "0"),
    ("schedule.warmup", "0"),
    ("schedule.steps", "3"),
    ("every.checkpoint", "1"),
    ("keep", "4"),
];
/// The largest difference from one rank, whose sums have another order.
const NEAR: f64 = 1e-5;

fn tensors(folder: &Path, file: &str) -> BTreeMap<String, Tensor> {
    candle_core::safetensors::load(folder.join(file), &Device::Cpu).unwrap().into_iter().collect()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let all: Vec<f32> =
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    all.into_iter().map(f64::from).collect()
}

/// The largest difference between two tensors, relative to the largest element.
fn apart(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (values(a), values(b));
    let most = |all: &mut dyn Iterator<Item = f64>| all.fold(0.0, f64::max);
    let largest = most(&mut b.iter().map(|x| x.abs()));
    most(&mut a.iter().zip(&b).map(|(a, b)| (a - b).abs())) / largest.max(1e-30)
}

fn step(outcome: &Outcome, step: u64) -> std::path::PathBuf {
    outcome.checkpoint.as_ref().unwrap().parent().unwrap().join(format!("step-{step}"))
}

/// Checks that a run is near another: losses, gradients of the first step (from its moments), and the checkpoint.
fn near(found: &Outcome, wanted: &Outcome, case: &str) {
    let off = difference(&losses(found), &losses(wanted));
    assert!(off < NEAR, "{case}: losses {off}");
    let (found, wanted) = (step(found, 1), step(wanted, 1));
    let [first, reference] =
        [&found, &wanted].map(|folder| tensors(folder, "optimizer.safetensors"));
    assert!(!first.is_empty() && first.len() == reference.len(), "{case}");
    for (name, tensor) in reference.iter().filter(|(name, _)| name.starts_with("first.")) {
        let off = apart(&first[name], tensor);
        assert!(off < NEAR, "{case}: the gradient of {name} is {off} off");
    }
}

fn train(place: &Place, name: &str, changes: &[(&str, &str)]) -> Outcome {
    place.run_in(name, &[&PLAIN[..], changes].concat())
}

#[test]
fn tensor_parallel_ranks_find_what_one_finds() {
    let place = Place::new();
    let wanted = train(&place, "one", &[]);
    let meshes = [
        [("mesh.tensor", "2"), ("mesh.sequence", "1"), ("mesh.data", "1")],
        [("mesh.tensor", "4"), ("mesh.sequence", "1"), ("mesh.data", "1")],
        [("mesh.tensor", "2"), ("mesh.sequence", "1"), ("mesh.data", "2")],
        [("mesh.tensor", "4"), ("mesh.sequence", "2"), ("mesh.data", "2")],
        [("mesh.tensor", "4"), ("mesh.sequence", "3"), ("mesh.data", "1")],
    ];
    for mesh in meshes {
        let case = format!("{mesh:?}");
        let strategy = if mesh[1].1 == "1" { "local" } else { "ring" };
        let changes = [&mesh[..], &[("attention.strategy", strategy)]].concat();
        let found = train(&place, &case, &changes);
        near(&found, &wanted, &case);
        let again = train(&place, &format!("{case} again"), &changes);
        assert!(
            state(&step(&found, 3)) == state(&step(&again, 3)),
            "{case}: other bits the second time"
        );
    }
}

#[test]
fn every_strategy_runs_beside_tensor_parallel_ranks() {
    let place = Place::new();
    let heads = [("model.num_attention_heads", "8"), ("model.num_key_value_heads", "8")];
    let wanted = train(&place, "one", &heads);
    for strategy in Strategy::ALL.into_iter().filter(|one| *one != Strategy::Local) {
        let name = strategy.name();
        let mesh = [("mesh.tensor", "2"), ("mesh.sequence", "4"), ("mesh.order", "data_first")];
        let changes = [&heads[..], &mesh, &[("attention.strategy", name)]].concat();
        near(&train(&place, name, &changes), &wanted, name);
    }
}

/// A mesh of two by two ranks, with the ring.
const FOUR: [(&str, &str); 3] =
    [("mesh.tensor", "2"), ("mesh.sequence", "2"), ("attention.strategy", "ring")];

#[test]
fn families_and_pieces_of_rows_are_as_on_one_rank() {
    let place = Place::new();
    let family = "model.model_type";
    let cases: [&[(&str, &str)]; 7] = [
        &[(family, "smollm3"), ("model.no_rope_layer_interval", "2")],
        &[(family, "qwen2"), ("model.tie_word_embeddings", "true")],
        &[(family, "qwen3"), ("model.attention_bias", "true"), ("model.head_dim", "8")],
        &[("model.mlp_bias", "true"), ("model.attention_bias", "true")],
        &[("memory.recompute", "none"), ("memory.mlp_chunk", "10"), ("memory.loss_chunk", "7")],
        &[("memory.recompute", "layer"), ("memory.micro_batch", "1"), ("attention.window", "9")],
        &[("attention.dropout", "0.2"), ("memory.micro_batch", "1")],
    ];
    for (number, changes) in cases.into_iter().enumerate() {
        let one = train(&place, &format!("{number} one"), changes);
        let four = train(&place, &format!("{number} four"), &[&FOUR[..], changes].concat());
        near(&four, &one, &format!("{changes:?}"));
    }
}

#[test]
fn adapters_are_as_on_one_rank() {
    let place = Place::new();
    let base = train(&place, "base", &[("model.attention_bias", "true")]).checkpoint.unwrap();
    let model = format!("{{ path: {} }}", base.display());
    let many = "{ rank: 3, alpha: 6, targets: [q_proj, v_proj, o_proj, up_proj, down_proj], \
                train: [norms] }";
    let few = "{ rank: 2, alpha: 2, targets: [k_proj], train: [embeddings, head] }";
    let dropped = &many.replace("alpha: 6", "alpha: 6, dropout: 0.25");
    for (name, lora) in [("many", many), ("few", few), ("dropped", dropped)] {
        let changes = [
            &[("model", model.as_str()), ("lora", lora), ("memory.micro_batch", "2")],
            &PLAIN[2..],
        ]
        .concat();
        let one = place.run_in(&format!("{name} one"), &changes);
        for pieces in ["1000", "10"] {
            let mesh = [&FOUR[..], &[("memory.mlp_chunk", pieces)], &changes].concat();
            let four = place.run_in(&format!("{name} four, {pieces}"), &mesh);
            near(&four, &one, &format!("{name}, {pieces}"));
        }
    }
}

/// A checkpoint of one rank resumes on tensor-parallel ranks, and the reverse.
#[test]
fn a_run_goes_on_with_other_tensor_parallel_ranks() {
    let place = Place::new();
    let whole = train(&place, "whole", &[]);
    for (name, first, then) in [("split", &[][..], &FOUR[..]), ("joined", &FOUR[..], &[][..])] {
        train(&place, name, &[first, &[("schedule.stop", "1")]].concat());
        let output = place.path(name);
        let resumed = [
            &PLAIN[..],
            then,
            &[("output", output.to_str().unwrap()), ("attention.strategy", "ring")],
        ]
        .concat();
        let resumed = place.run(&resumed).unwrap();
        assert_eq!(resumed.resumed_from, Some(1), "{name}");
        let last = |outcome: &Outcome| outcome.losses.last().unwrap().1;
        let off = (last(&resumed) - last(&whole)).abs() / last(&whole);
        assert!(off < NEAR, "{name}: {off}");
    }
}

/// Only training computes with parts of layers.
#[test]
fn scores_verdicts_and_texts_are_refused_on_tensor_parallel_ranks() {
    let place = Place::new();
    let setup = Setup::new(&place.plan(&[]), 2);
    let split = Setup::new(&place.plan(&[("mesh.tensor", "2")]), 2);
    let weights = Llama::random(&setup.config, 5).unwrap();
    let placed = setup.placed(&weights).unwrap();
    let ids = vec![1; split.tokens];
    let sequence = Sequence::shifted(&[&ids[..], &[1]].concat());
    let wanted = GenerateRequest { tokens: 1, ends: Vec::new(), sampling: Sampling::default() };
    let refusals = [
        score(&split, &weights, std::slice::from_ref(&sequence), ScoreOutputs::default()).map(drop),
        split.placed(&weights).map(drop),
        judge(&split, &placed, 1, &|_| Ok(sequence.clone()), &|| ()).map(drop),
        generate(&split, &placed, &ids, &wanted, &|_| ()).map(drop),
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        let said = "`mesh.tensor` is 2, but scoring, evaluation and generation need ranks that hold whole layers";
        assert_eq!(error.to_string(), said);
        assert_eq!(error.hint().unwrap(), "set `mesh.tensor=1`");
    }
}
