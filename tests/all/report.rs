//! `annulus report`: a page of runs that were trained, read as a browser reads it.

use std::fs;
use std::path::{Path, PathBuf};

use annulus_report::PANELS;
use annulus_tests::runs::{Place, metrics};
use annulus_tests::{Ran, run};
use scraper::{ElementRef, Html, Selector};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// The folder of a run, which its page shows.
const HOSTILE: &str = "<script>alert(1)</script>";

fn report(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), &[&["report"], arguments].concat())
}

fn selector(text: &str) -> Selector {
    Selector::parse(text).expect("a selector")
}

fn text(page: &Html, of: &str) -> String {
    page.select(&selector(of)).flat_map(|one| one.text()).collect()
}

/// The row of a panel's table that begins with a name: the numbers in its cells, as programs read them.
#[track_caller]
pub(crate) fn row(page: &Html, panel: &str, name: &str) -> Vec<f64> {
    let (rows, head) = (selector(&format!("section#{panel} tr")), selector("th"));
    let named = |row: &ElementRef<'_>| {
        row.select(&head).next().is_some_and(|head| head.text().collect::<String>() == name)
    };
    let row = page.select(&rows).find(named).unwrap_or_else(|| panic!("no {name} in {panel}"));
    let data = selector("data");
    let values = row.select(&data).filter_map(|data| data.value().attr("value"));
    values.map(|value| value.parse().expect("a number")).collect()
}

/// The values of a tag that a run logged.
fn logged(run: &Path, tag: &str) -> Vec<Value> {
    metrics(run).iter().filter_map(|line| line.get(tag).cloned()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn most(ranks: &Value) -> f64 {
    ranks.as_array().expect("by rank").iter().map(number).fold(0.0, f64::max)
}

/// Fails where the page could fetch or run anything.
#[track_caller]
fn assert_still(html: &str) {
    for word in ["http://", "https://", " src=", "@import", "url(", "<script", "<link", "<img"] {
        assert!(!html.contains(word), "{word}");
    }
}

/// The panels of a run's memory and traffic are of the start that is planned, as it was split over processes.
#[test]
fn a_run_is_held_against_the_plan_of_its_own_ranks_and_processes() {
    let place = Place::new(ANNULUS);
    place
        .train("run", &["mesh.sequence=1", "attention.strategy=local", "schedule.stop=3"])
        .ended(0);
    place
        .train("run", &["mesh.sequence=2", "attention.strategy=ring", "schedule.steps=6"])
        .ended(0);
    let memory = |name: &str| {
        report(&place, &["run"]).ended(0);
        let html = fs::read_to_string(place.path("report.html")).expect("a page");
        row(&Html::parse_document(&html), "memory", name)
    };
    // Measured and planned of two ranks: one rank alone held all keys and values, twice as much. On a busy machine one goes ahead, and holds
    // a tenth more.
    let [first, planned, second, _] = memory("key/value")[..] else { panic!("two ranks") };
    assert!(first <= planned * 1.5 && second <= planned * 1.5, "{first}, {second}, {planned}");
    let threads = memory("optimizer");
    let path = place.path("run/manifest.json");
    let mut manifest: Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("a manifest")).expect("JSON");
    let last = manifest["attempts"].as_array_mut().and_then(|all| all.last_mut()).expect("a start");
    last["processes"] =
        serde_json::json!([{"host": "a", "ranks": [0]}, {"host": "a", "ranks": [1]}]);
    fs::write(&path, manifest.to_string()).expect("it is written");
    let processes = memory("optimizer");
    assert!(threads[0] == processes[0] && threads[1] != processes[1], "{threads:?} {processes:?}");
}

#[test]
fn a_trace_that_cannot_be_read_costs_its_panel_alone() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2"]).ended(0);
    fs::write(place.path("run/trace-2.json"), "{").expect("it is written");
    fs::write(place.path("run/trace-007.json"), "{").expect("it is written");
    report(&place, &["run"]).ended(0);
    let html = fs::read_to_string(place.path("report.html")).expect("a page");
    let said = text(&Html::parse_document(&html), "section#ring");
    assert!(said.contains("run/trace-2.json"), "{said}");
}

#[test]
fn two_runs_stand_on_one_page_with_the_numbers_that_they_logged() {
    let place = Place::new(ANNULUS);
    let traced = ["schedule.steps=12", "trace.steps=[2]", "every.hash=6"];
    place.train(HOSTILE, &traced).ended(0);
    place.train("b", &["schedule.steps=12", "optimizer.learning_rate=2e-2"]).ended(0);
    let asked = [
        "evaluate",
        "b",
        "evaluation.path=text.txt",
        "evaluation.lengths=[40, 96]",
        "evaluation.windows=4",
    ];
    run(ANNULUS, &place.path(""), &asked).ended(0);
    let said = report(&place, &[HOSTILE, "b", "--out", "page.html"]).ended(0).stdout.clone();
    assert!(said.starts_with("page.html: 2 runs, "), "{said}");
    let html = fs::read_to_string(place.path("page.html")).expect("a page");
    assert!(html.len() < 2_000_000, "{}", html.len());
    assert_still(&html);
    let page = Html::parse_document(&html);
    let sections = selector("main > section");
    let ids: Vec<_> = page.select(&sections).filter_map(|one| one.value().id()).collect();
    assert_eq!(ids, PANELS);
    assert!(text(&page, "header code").contains(HOSTILE));

    let runs = [place.path(HOSTILE), place.path("b")];
    losses(&page, &runs);
    costs(&page, &runs);
    let wanted =
        fs::read_to_string(place.path("b/evaluation/perplexity.json")).expect("it is there");
    let wanted: Value = serde_json::from_str(&wanted).expect("JSON");
    for (index, tokens) in [(0, 40), (1, 96)] {
        let found = row(&page, "loss-by-length", &format!("{tokens} tokens"));
        assert_eq!(found, [number(&wanted["lengths"][index]["loss"]["mean"])]);
    }
    // Three ranks go through both passes; the picture has their tiles.
    assert_eq!(page.select(&selector("section#ring figure svg")).count(), 1);
    assert!(row(&page, "ring", "backward rank 2").len() > 5);
    assert!(text(&page, "section#ring p.absent").contains("trace.steps"), "of the other run");
    assert!(text(&page, "section#needle p.absent").contains("evaluation.tasks"));
    assert!(text(&page, "section#hashes").contains("state behind step 12"));
    assert!(text(&page, "section#experiment table").contains("optimizer.learning_rate0.010.02"));
    assert!(text(&page, "section#experiment pre").contains("decay: cosine"));
    assert!(text(&page, "section#manifest").contains("train experiment.yaml output=b"));
}

/// What a folder's config.json says is no default of this program.
#[test]
fn a_model_of_a_folder_has_no_defaults_of_a_shape() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=2"]).ended(0);
    place.train("b", &["schedule.steps=2", "model={ path: a/step-2 }"]).ended(0);
    report(&place, &["a", "b", "--out", "page.html"]).ended(0);
    let html = fs::read_to_string(place.path("page.html")).expect("a page");
    let said = text(&Html::parse_document(&html), "section#experiment table");
    assert!(said.contains("model.model_typellama–"), "{said}");
    assert!(!said.contains("– default"), "{said}");
}

/// First, last and least of both runs, to the bit.
#[track_caller]
fn losses(page: &Html, runs: &[PathBuf; 2]) {
    for (tag, name, pick) in [
        ("train/loss", "train/loss, first", 0),
        ("train/loss", "train/loss, last", 11),
        ("evaluate/loss", "evaluate/loss, last", 2),
    ] {
        let wanted = runs.each_ref().map(|run| number(&logged(run, tag)[pick]));
        assert_eq!(row(page, "loss", name), wanted, "{name}");
    }
    let least = runs
        .each_ref()
        .map(|run| logged(run, "train/loss").iter().map(number).fold(f64::INFINITY, f64::min));
    assert_eq!(row(page, "loss", "train/loss, least"), least);
}

/// Bytes are what was planned; memory is the most that was logged, near its plan.
#[track_caller]
fn costs(page: &Html, runs: &[PathBuf; 2]) {
    let sent = row(page, "plan", "bytes sent per step, most of a rank");
    let measured =
        runs.each_ref().map(|run| most(logged(run, "comm/bytes").last().expect("bytes")));
    assert_eq!(sent, [measured[0], measured[0], 1.0, measured[1], measured[1], 1.0]);
    let memory = row(page, "plan", "peak memory of the fullest rank");
    let measured =
        runs.each_ref().map(|run| logged(run, "memory/peak").iter().map(most).fold(0.0, f64::max));
    assert_eq!([memory[1], memory[4]], measured);
    assert!(memory[2] > 0.5 && memory[2] < 1.2, "{memory:?}");
    let class = row(page, "memory", "activations");
    let wanted = logged(&runs[0], "memory/activations");
    let wanted = wanted.iter().map(|ranks| number(&ranks[1])).fold(0.0, f64::max);
    // Of every rank what was measured and what was planned.
    assert_eq!((class.len(), class[2]), (6, wanted));
    // The times of this machine.
    assert!(row(page, "plan", "time of a step").iter().all(|seconds| *seconds > 0.0));
}

#[test]
fn a_page_of_a_run_that_was_killed_is_written_and_one_of_no_run_is_not() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=4"]).ended(0);
    let lines = fs::read_to_string(place.path("a/metrics.jsonl")).expect("metrics");
    fs::write(place.path("a/metrics.jsonl"), format!("{lines}{{\"step\": 5, \"tr"))
        .expect("a file");
    report(&place, &["a"]).ended(0);
    let page = fs::read_to_string(place.path("report.html")).expect("the page without a name");
    assert!(page.contains("is torn, and left out"));

    let broken = lines.replacen("\"train/loss\"", "train/loss", 1);
    fs::write(place.path("a/metrics.jsonl"), broken).expect("a file");
    fs::create_dir(place.path("empty")).expect("a folder");
    for (code, wanted, arguments) in [
        (3, "`a/metrics.jsonl`, line 1: no object of JSON", &["a"][..]),
        (2, "`empty` is not a run's folder", &["empty"]),
        (2, "`nowhere` is not a run's folder", &["nowhere"]),
        (2, "required", &[]),
    ] {
        let said = report(&place, arguments).ended(code).stderr.clone();
        assert!(said.contains(wanted), "{said}");
    }
    assert!(report(&place, &["a"]).stderr.contains("hint: delete that line"));
    place.train("b", &["schedule.steps=2"]).ended(0);
    let said = report(&place, &["b", "--out", "nowhere/page.html"]).ended(2).stderr.clone();
    assert!(said.contains("cannot write `nowhere/page.html`"), "{said}");
}
