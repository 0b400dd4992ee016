//! A run that was stopped and resumed, as TensorBoard's own reader sees it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use annulus_tests::root;
use annulus_tests::runs::Place;
use serde::Deserialize;
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// What is recorded at every step, or at every evaluation.
const TAGS: [&str; 17] = [
    "comm/bytes",
    "evaluate/bigram_entropy",
    "evaluate/loss",
    "memory/activations",
    "memory/data",
    "memory/gradients",
    "memory/key_value",
    "memory/optimizer",
    "memory/peak",
    "memory/weights",
    "memory/workspace",
    "speed/mfu",
    "speed/tflops",
    "speed/tokens_per_second",
    "train/grad_norm",
    "train/loss",
    "train/lr",
];

/// Series by tag, of steps and values.
#[derive(Deserialize)]
struct Seen {
    scalars: BTreeMap<String, Vec<(u64, f32)>>,
    texts: BTreeMap<String, Vec<(u64, String)>>,
}

#[test]
fn a_resumed_run_is_one_curve() {
    let python = root().join("target/python/tensorboard/bin/python");
    if !python.exists() {
        println!("SKIPPED: no {}; `cargo xtask setup python` installs it", python.display());
        return;
    }
    let place = Place::new(ANNULUS);
    let changes = ["mesh.sequence=2", "schedule.steps=10", "every.checkpoint=2"];
    // The third part repeats steps 9 and 10, which the second has drawn already.
    place.train("run", &[&changes[..], &["schedule.stop=5"]].concat()).ended(0);
    place.train("run", &changes).ended(0);
    fs::remove_dir_all(place.path("run/step-10")).expect("the last checkpoint");
    place.train("run", &changes).ended(0);

    let seen = read(&python, &place.path("run"));
    let wanted = recorded(&place.path("run"));
    let single: BTreeMap<_, _> =
        seen.scalars.iter().filter(|(tag, _)| !tag.contains("/rank ")).collect();
    assert_eq!(single.keys().collect::<Vec<_>>(), TAGS.iter().collect::<Vec<_>>());
    for (tag, series) in single {
        assert_eq!(*series, wanted[tag], "{tag}");
        assert!(series.is_sorted_by(|a, b| a.0 < b.0), "{tag} has a step twice: {series:?}");
    }
    check_texts(&seen.texts, &place.path("run"));
}

/// What TensorBoard's reader reads.
fn read(python: &Path, run: &Path) -> Seen {
    let script = root().join("tests/python/read_events.py");
    let output = Command::new(python).arg(script).arg(run).output().expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The series of `metrics.jsonl` in f32, as event files have them; of ranks, the largest value.
fn recorded(run: &Path) -> BTreeMap<String, Vec<(u64, f32)>> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let mut series: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    for line in text.lines() {
        let line: BTreeMap<String, Value> = serde_json::from_str(line).expect("a line of JSON");
        let step = line["step"].as_u64().expect("a step");
        for (tag, value) in line.into_iter().filter(|(tag, _)| tag != "step") {
            let largest = match value {
                Value::Array(ranks) => ranks.iter().filter_map(Value::as_f64).reduce(f64::max),
                value => value.as_f64(),
            };
            let value = largest.expect("a number") as f32;
            series.entry(tag).or_default().push((step, value));
        }
    }
    assert_eq!(series["train/loss"].len(), 10, "one line per step");
    series
}

/// The experiment as it was given, and the manifest as it was when the run began: once each.
fn check_texts(texts: &BTreeMap<String, Vec<(u64, String)>>, run: &Path) {
    assert_eq!(texts.keys().collect::<Vec<_>>(), ["config", "manifest"]);
    let text = |tag: &str| match texts[tag].as_slice() {
        [(0, text)] => text.trim_matches(['`', '\n']).to_owned(),
        several => panic!("{tag}: {several:?}"),
    };
    let kept = |name: &str| fs::read_to_string(run.join(name)).expect("it is in the run folder");
    assert_eq!(text("config"), kept("experiment.yaml").trim());
    let manifest = |text: &str| {
        let mut manifest: Value = serde_json::from_str(text).expect("JSON");
        manifest.as_object_mut().and_then(|manifest| manifest.remove("attempts"));
        manifest
    };
    assert_eq!(manifest(&text("manifest")), manifest(&kept("manifest.json")));
}
