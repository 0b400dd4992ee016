//! `reproducible: strict`: one set of bits for any ranks, split in any way, whatever was shared, stopped or resumed.

use std::collections::BTreeSet;
use std::fs;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
/// Sequences of 32 blocks of 16, which eight ranks may hold zigzag.
const SAME: [&str; 7] = [
    "data.tokens=512",
    "data.batch=4",
    "data.evaluate=2",
    "schedule.steps=4",
    "schedule.decay=constant",
    "every.hash=1",
    "every.log=1",
];
const STRICT: &str = "reproducible=strict";

/// Losses and hashes of a run, without the times.
fn bits(place: &Place, output: &str) -> String {
    let folder = place.path(output);
    let hashes = fs::read_to_string(folder.join("hashes.jsonl")).expect("the run hashed its state");
    let metrics = fs::read_to_string(folder.join("metrics.jsonl")).expect("the run logged");
    let losses = metrics.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line of metrics");
        format!("{} {} {}\n", line["step"], line["train/loss"], line["train/grad_norm"])
    });
    losses.collect::<String>() + &hashes
}

fn train(place: &Place, output: &str, changes: &[&str]) -> Ran {
    place.train(output, &[&SAME[..], changes].concat())
}

#[test]
fn any_ranks_split_in_any_way_have_one_set_of_bits() {
    let place = Place::new(ANNULUS);
    train(&place, "one", &[STRICT, "mesh.sequence=1", "attention.strategy=local"]).ended(0);
    let one = bits(&place, "one");
    assert_eq!(one.lines().filter(|line| line.starts_with('{')).count(), 4);
    let ways: [&[&str]; 7] = [
        &["mesh.sequence=2", "attention.strategy=ring"],
        &["mesh.sequence=3", "attention.strategy=striped", "memory.micro_batch=1"],
        &["mesh.sequence=4", "attention.strategy=megatron", "memory.recompute=layer"],
        &["mesh.sequence=8", "attention.strategy=ring", "attention.layout=zigzag"],
        &["mesh.sequence=2", "mesh.data=2", "attention.strategy=ulysses"],
        &["mesh.sequence=2", "mesh.weights=[3, 1]", "attention.strategy=all-gather"],
        &["mesh.sequence=4", "mesh.data=2", "attention.strategy=double-ring"],
    ];
    for (index, way) in ways.iter().enumerate() {
        let output = format!("way-{index}");
        train(&place, &output, &[&[STRICT], *way].concat()).ended(0);
        assert!(bits(&place, &output) == one, "{way:?} has other bits");
    }
    // Stopped, and gone on with on other ranks.
    train(
        &place,
        "moved",
        &[STRICT, "mesh.sequence=2", "attention.strategy=ring", "schedule.steps=2"],
    )
    .ended(0);
    train(&place, "moved", &[STRICT, "mesh.sequence=3", "attention.strategy=striped"]).ended(0);
    assert!(bits(&place, "moved") == one, "a run that moved has other bits");
}

#[test]
fn without_strict_every_split_has_bits_of_its_own() {
    let place = Place::new(ANNULUS);
    let mut all = BTreeSet::new();
    for (output, ranks) in [("two", "mesh.sequence=2"), ("three", "mesh.sequence=3")] {
        train(&place, output, &[ranks, "attention.strategy=ring"]).ended(0);
        all.insert(bits(&place, output));
    }
    train(&place, "strict", &[STRICT, "mesh.sequence=2", "attention.strategy=ring"]).ended(0);
    all.insert(bits(&place, "strict"));
    assert_eq!(all.len(), 3);
}

#[test]
fn masks_dropout_bf16_and_adapters_have_one_set_of_bits() {
    let cases: [&[&str]; 4] = [
        &["attention.pattern=strided", "attention.stride=40", "attention.dropout=0.1"],
        &["attention.window=50", "attention.global=[3, 40, 300]", "model.tie_word_embeddings=true"],
        &["model.dtype=bf16", "attention.documents=[100, 7, 405]", "model.attention_bias=true"],
        &["lora.rank=3", "lora.dropout=0.1", "lora.rslora=true"],
    ];
    for case in cases {
        let place = Place::new(ANNULUS);
        if case[0].starts_with("lora") {
            beside_a_base(&place);
        }
        let of = |output: &str, way: &[&str]| {
            train(&place, output, &[&[STRICT, "schedule.steps=2"], case, way].concat()).ended(0);
            bits(&place, output)
        };
        let two = of("two", &["mesh.sequence=2", "attention.strategy=ring"]);
        let three = of("three", &["mesh.sequence=3", "attention.strategy=striped"]);
        let four = of("four", &["mesh.sequence=2", "mesh.data=2", "attention.strategy=megatron"]);
        assert!(two == three && three == four, "{case:?}");
    }
}

/// The experiment with a model of its own in place of a new one.
fn beside_a_base(place: &Place) {
    train(place, "base", &["schedule.steps=2", "every.hash=0"]).ended(0);
    let text = fs::read_to_string(place.path("experiment.yaml")).expect("the experiment");
    let (before, rest) = text.split_once("model:").expect("a model");
    let (_, behind) = rest.split_once("data:").expect("data");
    let model = "model: { path: base/step-2 }";
    place.write("experiment.yaml", &format!("{before}{model}\ndata:{behind}"));
}

#[test]
fn what_strict_does_not_go_with_is_refused_by_name() {
    let place = Place::new(ANNULUS);
    let refused: [(&[&str], &str); 7] = [
        (&["data.tokens=500"], "multiple of 16"),
        (&["attention.strategy=li-ring", "mesh.sequence=2"], "does not go with `li-ring`"),
        (&["mesh.tensor=2"], "tensor-parallel"),
        (&["data.batch=4096"], "at most 65536 blocks of 16 tokens in a step with 4 query heads"),
        (
            &["attention.wire.gradient=bf16", "mesh.sequence=2", "attention.strategy=ring"],
            "sends sums as they are",
        ),
        (&["attention.kernel=reference"], "the fast kernel"),
        (&["memory.mlp_chunk=100"], "whole blocks"),
    ];
    for (changes, said) in refused {
        let arguments = [&["check", "experiment.yaml", STRICT], &SAME[..3], changes].concat();
        let ran = run(ANNULUS, &place.path(""), &arguments);
        let ran = ran.ended(2);
        assert!(ran.stderr.contains(said), "{changes:?}: {}", ran.stderr);
    }
}
