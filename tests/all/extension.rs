//! A model of short sequences goes on at longer ones, by every experiment that extends one.

use std::fs;
use std::path::Path;

use annulus_tests::runs::Place;
use annulus_tests::{root, run};
use serde_json::{Value, json};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Much smaller, and a few steps.
const SMALL: [&str; 9] = [
    "data.path=text.txt",
    "data.tokenizer=bytes",
    "data.batch=1",
    "data.evaluate=2",
    "schedule.steps=3",
    "schedule.warmup=1",
    "every.log=1",
    "every.evaluate=0",
    "every.checkpoint=3",
];

/// Trains an experiment of the repository in a folder of its own; its checkpoint.
fn train(place: &Place, experiment: &str, output: &str, changes: &[&str]) -> std::path::PathBuf {
    let file = root().join(format!("experiments/{experiment}.yaml")).display().to_string();
    let output = place.path(output);
    let into = format!("output={}", output.display());
    let words = [&["train", &file, &into], &SMALL[..], changes].concat();
    run(ANNULUS, &place.path(""), &words).ended(0);
    output.join("step-3")
}

fn config(checkpoint: &Path) -> Value {
    let text = fs::read_to_string(checkpoint.join("config.json")).expect("a configuration");
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn a_small_model_goes_on_at_sixteen_times_its_length() {
    let place = Place::new(ANNULUS);
    let small = [
        "model.hidden_size=32",
        "model.intermediate_size=48",
        "model.num_hidden_layers=1",
        "model.max_position_embeddings=16",
        "data.tokens=16",
    ];
    let pretrained = train(&place, "pretrain-small", "pretrained", &small);
    assert_eq!(config(&pretrained)["max_position_embeddings"], 16);

    let model = format!("model.path={}", pretrained.display());
    let longer = [model.as_str(), "extend.tokens=256", "data.tokens=256"];
    for (rope, wanted) in [
        (
            "yarn",
            json!({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16}),
        ),
        ("linear", json!({"rope_type": "linear", "factor": 16.0})),
        ("abf", json!({"rope_type": "default", "rope_theta": 500_000.0})),
    ] {
        let extended = train(&place, &format!("extend-{rope}"), rope, &longer);
        let config = config(&extended);
        assert_eq!(config["max_position_embeddings"], 256, "{rope}");
        for (key, value) in wanted.as_object().expect("keys") {
            assert_eq!(&config["rope_parameters"][key], value, "{rope}: {key} in {config}");
        }
        let lines = fs::read_to_string(place.path(rope).join("metrics.jsonl")).expect("metrics");
        assert_eq!(lines.lines().count(), 3, "{rope}");
    }
}

#[test]
fn a_length_of_its_own_is_no_shorter_than_sequences() {
    let place = Place::new(ANNULUS);
    let ran = place.train("short", &["model.max_position_embeddings=32"]);
    assert!(ran.ended(2).stderr.contains("32 positions, but sequences have 48 tokens"));
}
