//! `annulus compare`: what differs between runs is shown, and what is equal is said to be.

use std::fs;

use annulus_tests::runs::{Place, losses, metrics};
use annulus_tests::{Ran, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// The width of a terminal.
const WIDTH: usize = 80;

fn compare(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), &[&["compare"], arguments].concat())
}

/// The line of a text that begins with a word.
#[track_caller]
fn line<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let found = text.lines().find(|line| line.trim_start().starts_with(word));
    found.unwrap_or_else(|| panic!("no {word} in {text}")).split_whitespace().collect()
}

#[test]
fn equal_runs_have_equal_bits() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=12"]).ended(0);
    place.train("b", &["schedule.steps=12"]).ended(0);
    let text = compare(&place, &["a", "b"]).ended(0).stdout.clone();
    assert!(text.contains("what differs: nothing but the folder"), "{text}");
    assert!(text.contains("  equal bits at all 12 common steps"), "{text}");
    assert!(text.contains("  equal bits at all 3 common steps"), "{text}");
    assert_eq!(line(&text, "step 12")[4], "0", "{text}");
    let json = compare(&place, &["a", "b", "--json"]).ended(0).json().remove(0);
    assert_eq!(json["keys"], serde_json::json!([]));
    assert_eq!(json["curves"][0]["tag"], "train/loss");
    assert_eq!(json["curves"][0]["against_first"][0]["equal_bits"], true);
    let last = losses(&place.path("a"))[11];
    assert_eq!(json["curves"][0]["rows"][9]["values"], serde_json::json!([last, last]));
}

#[test]
fn what_differs_is_shown_where_it_differs() {
    let place = Place::new(ANNULUS);
    let rate = "optimizer.learning_rate=2e-2";
    let other = ["mesh.sequence=1", "attention.strategy=local", "data.tokens=32", "every.log=2"];
    place.train("a", &["schedule.steps=12"]).ended(0);
    place.train("b", &["schedule.steps=12", rate]).ended(0);
    let small = "model={ hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2 }";
    place.train("c", &[&["schedule.steps=8", small], &other[..]].concat()).ended(0);
    let text = compare(&place, &["a", "b"]).ended(0).stdout.clone();
    assert_eq!(line(&text, "optimizer.learning_rate"), ["optimizer.learning_rate", "0.01", "0.02"]);
    assert!(!text.contains("data.tokens"), "{text}");
    // The first loss is of the same weights; the update after it is another.
    assert_eq!(line(&text, "step 1 ")[4], "0", "{text}");
    assert!(text.contains("bits differ from step 2 on"), "{text}");
    let (a, b) = (losses(&place.path("a")), losses(&place.path("b")));
    let largest = a.iter().zip(&b).map(|(a, b)| (b - a).abs()).fold(0.0, f64::max);
    let json = compare(&place, &["a", "b", "--json"]).ended(0).json().remove(0);
    let found = json["curves"][0]["against_first"][0]["largest"][1].as_f64().expect("a number");
    assert_eq!(found.abs(), largest);

    let text = compare(&place, &["a", "b", "c"]).ended(0).stdout.clone();
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    assert_eq!(line(&text, "model.hidden_size"), ["model.hidden_size", "32", "32", "16"]);
    assert_eq!(line(&text, "every.log"), ["every.log", "1", "(default)", "1", "(default)", "2"]);
    assert_eq!(line(&text, "ranks"), ["ranks", "3", "3", "1"]);
    assert!(text.contains("evaluate/loss: C held out other text than A"), "{text}");
    assert_eq!(line(&text, "attention.stripe"), ["attention.stripe", "1", "1", "absent"]);
    assert!(text.contains("first weights, hash") && text.contains("C ends at step 8"), "{text}");
    assert!(line(&text, "peak memory")[9].starts_with('('), "{text}");
}

#[test]
fn the_curves_of_many_runs_are_a_picture() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=4"]).ended(0);
    place.train("b", &["schedule.steps=4", "seed=4"]).ended(0);
    let files = ["--svg", "losses.svg", "--png", "losses.png"];
    compare(&place, &[&["a", "b", "a", "b", "a", "b"], &files[..]].concat()).ended(0);
    let svg = fs::read_to_string(place.path("losses.svg")).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(svg.contains(">B b</text>") && svg.contains(">C a = A</text>"), "{svg}");
    let png = fs::read(place.path("losses.png")).expect("a picture");
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.ends_with(b"IEND\xaeB`\x82"));
    assert_eq!(png[16..24], [0, 0, 3, 192, 0, 0, 2, 88], "960 by 600 pixels");
    let text = compare(&place, &["a"; 16]).ended(0).stdout.clone();
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    assert!(text.contains("\nP  a\n"), "{text}");
}

#[test]
fn runs_without_a_common_step_are_compared_otherwise() {
    let place = Place::new(ANNULUS);
    let steady = ["schedule.decay=constant", "schedule.steps=7"];
    place.train("trunk", &["schedule.decay=constant", "schedule.steps=4"]).ended(0);
    let words = ["train", "experiment.yaml", "output=fork", "--from", "trunk/step-4"];
    run(ANNULUS, &place.path(""), &[&words[..], &steady].concat()).ended(0);
    let text = compare(&place, &["trunk", "fork"]).ended(0).stdout.clone();
    assert!(text.contains("train/loss: the runs have no step in common"), "{text}");
    assert!(text.contains("  B ends at step 7 with "), "{text}");
    assert_eq!(line(&text, "schedule.steps"), ["schedule.steps", "4", "7"]);
    assert_eq!(line(&text, "forked from"), ["forked", "from", "absent", "trunk/step-4"]);
}

#[test]
fn what_is_unknown_or_left_out_is_said() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=4"]).ended(0);
    let bare = ["schedule.steps=4", "data.evaluate=0", "every.evaluate=0"];
    place.train("b", &bare).ended(0);
    let text = compare(&place, &["a", "b"]).ended(0).stdout.clone();
    assert!(text.contains("evaluate/loss is left out: B logged none"), "{text}");
    let text = compare(&place, &["b", "b"]).ended(0).stdout.clone();
    assert!(!text.contains("evaluate/loss"), "{text}");
    place.copy("a", "unknown");
    let path = place.path("unknown/metrics.jsonl");
    let metrics = fs::read_to_string(&path).expect("metrics");
    let loss = format!("\"train/loss\": {:.16e}", losses(&place.path("a"))[1]);
    assert_eq!(metrics.matches(&loss).count(), 1, "{metrics}");
    fs::write(&path, metrics.replace(&loss, "\"train/loss\": null")).expect("metrics");
    let text = compare(&place, &["a", "unknown"]).ended(0).stdout.clone();
    assert_eq!(line(&text, "step 2")[3..], ["not", "finite", "-"], "{text}");
    let said = "  B: bits differ from step 2 on; first not finite at step 2";
    assert!(text.contains(said) && !text.contains("largest"), "{text}");
}

#[test]
fn folders_that_cannot_be_compared_are_answered() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=2"]).ended(0);
    let said = |arguments: &[&str]| compare(&place, arguments).ended(2).stderr.clone();
    assert!(said(&["a", "."]).contains("`.` is not a run's folder"));
    assert!(said(&["a", "a/step-2"]).contains("`a/step-2` is not a run's folder"));
    assert!(said(&["a"]).contains("2 values required"));
    assert!(!said(&["a"; 17]).is_empty());
    assert!(said(&["a", "a", "--png", "nowhere/losses.png"]).contains("cannot write"));
    place.copy("a", "empty");
    fs::write(place.path("empty/metrics.jsonl"), "").expect("a file");
    assert!(said(&["a", "empty"]).contains("`empty` has no `train/loss` in its metrics.jsonl"));
}

/// A damaged line is named by all that read metrics, and not left out; a last one that is torn is.
#[test]
fn damaged_lines_are_named() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=4"]).ended(0);
    let metrics = fs::read_to_string(place.path("a/metrics.jsonl")).expect("metrics");
    let damaged = metrics.replacen("{\"step\": 2,", "\"step\": 2,", 1);
    assert_ne!(damaged, metrics);
    for (name, code, text) in [("torn", 0, metrics + "{\"step\": 5, \"tr"), ("damaged", 3, damaged)]
    {
        place.copy("a", name);
        fs::write(place.path(name).join("metrics.jsonl"), text).expect("written");
        for arguments in [&["compare", "a", name][..], &["table", name], &["export-metrics", name]]
        {
            let said = run(ANNULUS, &place.path(""), arguments).ended(code).stderr.clone();
            let is_named = said.contains("`damaged/metrics.jsonl`, line 2: no object of JSON");
            assert_eq!(is_named, code == 3, "{arguments:?}: {said}");
        }
    }
}

/// On a CPU every run measures the peak for itself; one that resumes keeps it.
#[test]
fn shares_of_different_peaks_are_not_divided() {
    let place = Place::new(ANNULUS);
    let manifest = |run: &str| -> Value {
        let text = fs::read_to_string(place.path(run).join("manifest.json")).expect("a manifest");
        serde_json::from_str(&text).expect("JSON")
    };
    let with_peak = |run: &str, peak: Option<u64>| {
        let mut manifest = manifest(run);
        manifest["machine"]["peak"] = peak.into();
        fs::write(place.path(run).join("manifest.json"), manifest.to_string()).expect("a file");
    };
    place.train("a", &["schedule.steps=6", "schedule.stop=2"]).ended(0);
    assert!(manifest("a")["machine"]["peak"].as_u64().is_some_and(|peak| peak > 1 << 28));
    // One that no measurement finds.
    let peak = 9_876_543_210_123_u64;
    with_peak("a", Some(peak));
    place.train("a", &["schedule.steps=6", "schedule.stop=4"]).ended(0);
    assert_eq!(manifest("a")["machine"]["peak"], peak);
    for line in &metrics(&place.path("a"))[2..] {
        let number = |tag: &str| line[tag].as_f64().expect("a number");
        let share = number("speed/tflops") * 1e12 / peak as f64;
        assert!((number("speed/mfu") / share - 1.0).abs() < 1e-3, "{line}");
    }
    place.copy("a", "b");
    let mfu = |peak: Option<u64>| {
        with_peak("b", peak);
        let text = compare(&place, &["a", "b"]).ended(0).stdout.clone();
        text.lines().find(|line| line.contains("MFU, median")).expect("a row").to_owned()
    };
    assert!(mfu(Some(peak)).ends_with("(1.00x)"));
    assert!(mfu(Some(peak + 1)).ends_with("(other peak)"));
    // Manifests of earlier versions do not say it.
    assert!(mfu(None).ends_with(" %"));
    // On another machine it is measured.
    let mut other = manifest("a");
    other["machine"]["cpu"] = "another".into();
    fs::write(place.path("a/manifest.json"), other.to_string()).expect("a file");
    place.train("a", &["schedule.steps=6"]).ended(0);
    assert_ne!(manifest("a")["machine"]["peak"], peak);
}
