//! A run that was stopped and resumed, as TensorBoard's own reader sees it: one curve by tag, losses before anything else.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use annulus_tests::root;
use annulus_tests::runs::Place;
use serde::Deserialize;
use serde_json::{Value, json};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// What is recorded at every step, or at every evaluation.
const TAGS: [&str; 21] = [
    "comm/bytes",
    "evaluate/bigram_entropy",
    "evaluate/loss",
    "memory/activations",
    "memory/base/process-0",
    "memory/data",
    "memory/gradients",
    "memory/key_value",
    "memory/optimizer",
    "memory/peak",
    "memory/resident/process-0",
    "memory/weights",
    "memory/workspace",
    "speed/mfu",
    "speed/seconds_per_step",
    "speed/tflops",
    "speed/tokens_per_second",
    "train/grad_norm",
    "train/loss",
    "train/lr",
    "train/tokens",
];

/// What of them has another name there, so that losses are first by name.
const RENAMED: [(&str, &str); 6] = [
    ("evaluate/bigram_entropy", "evaluate/more/bigram_entropy"),
    ("train/grad_norm", "train/more/grad_norm"),
    ("comm/", "training_comm/"),
    ("memory/", "training_memory/"),
    ("speed/", "training_speed/"),
    ("", ""),
];

/// Series by tag, of steps and values.
#[derive(Deserialize)]
pub(crate) struct Seen {
    scalars: BTreeMap<String, Vec<(u64, f32)>>,
    texts: BTreeMap<String, Vec<(u64, String)>>,
    /// Titles, with the regular expressions of each chart.
    pub(crate) layout: Vec<(String, Vec<Vec<String>>)>,
    hparams: Hyperparameters,
}

/// The page of runs beside each other.
#[derive(Deserialize)]
struct Hyperparameters {
    columns: Vec<String>,
    metrics: Vec<String>,
    values: BTreeMap<String, Value>,
}

#[test]
fn a_resumed_run_is_one_curve() {
    let Some(python) = python() else { return };
    let place = Place::new(ANNULUS);
    let changes = ["mesh.sequence=2", "schedule.steps=10", "every.checkpoint=2"];
    // The third part repeats steps 9 and 10, which the second has drawn already.
    place.train("run", &[&changes[..], &["schedule.stop=5"]].concat()).ended(0);
    place.train("run", &changes).ended(0);
    fs::remove_dir_all(place.path("run/step-10")).expect("the last checkpoint");
    place.train("run", &changes).ended(0);

    let seen = read(&python, &place.path("run"));
    let wanted = recorded(&place.path("run"));
    assert_eq!(wanted["train/loss"].len(), 10, "one line per step");
    for tag in TAGS {
        let series = &seen.scalars[&shown(tag)];
        assert_eq!(*series, wanted[tag], "{tag}");
        assert!(series.is_sorted_by(|a, b| a.0 < b.0), "{tag} has a step twice: {series:?}");
    }
    let names: Vec<String> = TAGS.iter().map(|tag| shown(tag)).collect();
    let below = |tag: &String| ["least", "mean"].map(|end| format!("{tag}/{end}"));
    let known: Vec<String> = names.iter().flat_map(below).chain(names.clone()).collect();
    let strange: Vec<_> = seen.scalars.keys().filter(|tag| !known.contains(tag)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    check_order(&seen);
    check_hparams(&seen.hparams);
    check_texts(&seen.texts, &place.path("run"));
}

/// As if it had been killed before its first checkpoint, then begun with other values in the same folder.
#[test]
fn a_run_that_begins_anew_shows_nothing_of_what_came_before() {
    let Some(python) = python() else { return };
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=4", "every.checkpoint=0"]).ended(0);
    fs::remove_dir_all(place.path("run/step-4")).expect("the checkpoint");
    fs::remove_file(place.path("run/LATEST")).expect("its name");
    let other = ["schedule.steps=3", "optimizer.learning_rate=0.003", "every.log=1"];
    place.train("run", &other).ended(0);
    let seen = read(&python, &place.path("run"));
    assert_eq!(seen.scalars["train/loss"], recorded(&place.path("run"))["train/loss"]);
    assert_eq!(seen.hparams.values["learning rate"], json!(0.003));
}

#[test]
fn an_evaluation_replaces_the_one_before_of_the_same_step() {
    let Some(python) = python() else { return };
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=4", "every.checkpoint=2", "keep=9"]).ended(0);
    for asked in ["run", "run", "run/step-2"] {
        let words = ["evaluate", asked, "evaluation.lengths=[16]"];
        annulus_tests::run(ANNULUS, &place.path(""), &words).ended(0);
    }
    let seen = read(&python, &place.path("run/evaluation"));
    let steps: Vec<u64> =
        seen.scalars["evaluation/loss/16"].iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [4, 2]);
}

#[test]
fn ranks_have_curves_where_the_experiment_asks_for_them() {
    let Some(python) = python() else { return };
    let place = Place::new(ANNULUS);
    for (run, ranks) in [("few", 0), ("many", 3)] {
        place.train(run, &["schedule.steps=2", &format!("every.ranks={}", ranks > 0)]).ended(0);
        let seen = read(&python, &place.path(run));
        for tag in ["comm/bytes", "memory/peak"].map(shown) {
            let of_ranks =
                seen.scalars.keys().filter(|key| key.starts_with(&format!("{tag}/rank ")));
            assert_eq!(of_ranks.count(), ranks, "{tag}");
        }
    }
    let lines = ["few", "many"].map(|run| recorded(&place.path(run)));
    assert_eq!(lines[0]["train/loss"], lines[1]["train/loss"]);
}

/// TensorBoard's Python, where it is installed.
#[expect(clippy::print_stdout, reason = "what a run of tests leaves out is to be seen")]
pub(crate) fn python() -> Option<PathBuf> {
    let python = root().join("target/python/tensorboard/bin/python");
    let there = python.exists();
    if !there {
        println!("SKIPPED: no {}; `cargo xtask setup python` installs it", python.display());
    }
    there.then_some(python)
}

/// The name of a curve.
fn shown(tag: &str) -> String {
    let (from, to) = RENAMED.iter().find(|(from, _)| tag.starts_with(from)).expect("a row");
    format!("{to}{}", &tag[from.len()..])
}

/// Losses are first: by name, which the pages "Time Series" and "Scalars" sort by, and in the layout of "Custom Scalars",
/// every chart of which has a curve if the run has it.
fn check_order(seen: &Seen) {
    // TensorBoard sorts `/` and `_` before all other letters.
    let part = |tag: &str| tag.replace(['/', '_'], "\u{1}");
    let mut tags: Vec<&String> = seen.scalars.keys().collect();
    tags.sort_by_key(|tag| part(tag));
    let mut groups: Vec<&str> = tags.iter().filter_map(|tag| tag.split('/').next()).collect();
    groups.dedup();
    assert_eq!(groups[..2], ["evaluate", "train"], "{groups:?}");
    let first =
        |group: &str| tags.iter().find(|tag| tag.starts_with(group)).map(|tag| tag.as_str());
    assert_eq!(first("evaluate/"), Some("evaluate/loss"));
    assert_eq!(first("train/"), Some("train/loss"));
    let titles: Vec<&str> = seen.layout.iter().map(|(title, _)| title.as_str()).collect();
    let wanted = ["loss", "learning rate", "gradient norm", "speed", "memory", "communication"];
    assert_eq!(titles, wanted);
    for tag in seen.layout.iter().flat_map(|(_, charts)| charts.iter().flatten()) {
        let name = tag.trim_end_matches("(/least|/mean)?$");
        assert!(name.ends_with("comm/overlap") || seen.scalars.contains_key(name), "{tag}");
    }
}

/// What runs are compared by.
fn check_hparams(found: &Hyperparameters) {
    assert_eq!(found.metrics, ["train/loss", "evaluate/loss"]);
    let mut columns = found.columns.clone();
    columns.sort();
    assert_eq!(columns, found.values.keys().cloned().collect::<Vec<_>>());
    let values = ["ranks", "strategy", "tokens", "batch", "learning rate", "seed", "dtype"];
    let wanted = json!([2.0, "striped", 48.0, 2.0, 0.01, 3.0, "f32"]);
    assert_eq!(json!(values.map(|name| &found.values[name])), wanted);
    assert!(found.values["parameters"].as_f64().is_some_and(|count| count > 1e4));
}

/// What TensorBoard's reader reads.
pub(crate) fn read(python: &Path, run: &Path) -> Seen {
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
    series
}

/// The experiment as it was resolved, and the manifest as it was when the run began: once each.
fn check_texts(texts: &BTreeMap<String, Vec<(u64, String)>>, run: &Path) {
    assert_eq!(texts.keys().collect::<Vec<_>>(), ["config", "manifest"]);
    let text = |tag: &str| match texts[tag].as_slice() {
        [(0, text)] => text.trim_matches(['`', '\n']).to_owned(),
        several => panic!("{tag}: {several:?}"),
    };
    let kept = |name: &str| fs::read_to_string(run.join(name)).expect("it is in the run folder");
    // The first part was told where to stop; the folder has what the last part was told.
    assert_eq!(text("config").replace("  stop: 5\n", ""), kept("experiment.yaml").trim());
    let manifest = |text: &str| {
        let mut manifest: Value = serde_json::from_str(text).expect("JSON");
        manifest.as_object_mut().and_then(|manifest| manifest.remove("attempts"));
        // The peak is measured once all processes are there.
        manifest["machine"].as_object_mut().and_then(|machine| machine.remove("peak"));
        manifest
    };
    assert_eq!(manifest(&text("manifest")), manifest(&kept("manifest.json")));
}
