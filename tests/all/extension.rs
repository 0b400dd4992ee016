//! A model of short sequences goes on at longer ones, by every experiment that extends one.

use std::fs;
use std::path::Path;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, root, run};
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

/// Evaluates a run behind 24 and 96 tokens: the lengths that were measured, and what was said.
fn evaluated(place: &Place, folder: &str) -> (Vec<u64>, String) {
    let words =
        ["evaluate", folder, "--json", "evaluation.lengths=[24, 96]", "evaluation.windows=2"];
    let ran = run(ANNULUS, &place.path(""), &words);
    let found = ran.ended(0).json().remove(0);
    let lengths = found["perplexity"]["lengths"].as_array().expect("lengths");
    (lengths.iter().filter_map(|one| one["tokens"].as_u64()).collect(), ran.stderr.clone())
}

/// What is lost beyond the trained length is what a stretch of the frequencies is judged by.
#[test]
fn what_a_run_makes_of_longer_sequences_is_measured_and_said() {
    let place = Place::new(ANNULUS);
    let generated = |folder: &str, tokens: &str| -> Ran {
        let words = ["generate", folder, "--prompt", "alpha", "--tokens", tokens, "--json"];
        let ran = run(ANNULUS, &place.path(""), &words);
        ran.ended(0);
        ran
    };
    place.train("own", &["schedule.steps=2", "model.max_position_embeddings=64"]).ended(0);
    let extend = "extend={ rope: yarn, tokens: 80 }";
    let model = "model={ path: own/step-2 }";
    place.train("stretched", &["schedule.steps=2", model, extend]).ended(0);
    for (folder, longest) in [("own", 64), ("own/step-2", 64), ("stretched", 80)] {
        let (lengths, said) = evaluated(&place, folder);
        assert_eq!(lengths, [24, 96], "{folder}");
        let wanted = format!("96 tokens are more than the {longest} that the model was trained");
        assert!(said.contains(&wanted), "{folder}: {said}");
        // The last of the tokens is drawn, and not read: `alpha` has five.
        let within = generated(folder, &(longest - 5 + 1).to_string()).stderr;
        assert!(!within.contains("was trained on at most"), "{folder}: {within}");
        let beyond = generated(folder, &(longest - 5 + 2).to_string()).stderr;
        let wanted = format!(
            "are {} tokens to read; the model was trained on at most {longest}",
            longest + 1
        );
        assert!(beyond.contains(&wanted), "{folder}: {beyond}");
    }
    // Training is refused as ever.
    let longer = ["data.tokens=96", "model.max_position_embeddings=64", "model.allow_longer=true"];
    let refused = place.train("longer", &longer);
    assert!(refused.ended(2).stderr.contains("64 positions, but sequences have 96 tokens"));
    let beyond = place.train("longer", &["data.tokens=96", model, extend]);
    assert!(
        beyond.ended(2).stderr.contains("longer than `extend.tokens`, 80"),
        "{}",
        beyond.stderr
    );
}
