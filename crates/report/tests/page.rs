//! A page holds what the runs' folders hold, whatever stands there, and asks nobody for anything.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use annulus_report::{LARGEST, MOST_RUNS, PANELS, Planned, report};
use annulus_train::{Logged, TrainError};
use scraper::{Html, Selector};
use serde_json::json;

const HOSTILE: &str = "<script>alert(1)</script><img src=\"http://a.example/x\" onerror=alert(2)>";

fn unplanned(_: &Logged, _: u64) -> Result<Planned, String> {
    Err(format!("not asked for {HOSTILE}"))
}

/// A run's folder with so many logged steps and nothing else.
fn run(folder: &Path, name: &str, steps: u64) -> PathBuf {
    let run = folder.join(name);
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("run.lock"), "1\n").unwrap();
    let experiment = "name: tiny\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 }\n\
         data: { path: text.txt, tokens: 8 }\noptimizer: { learning_rate: 1e-2 }\nschedule: { steps: 5000 }\n";
    fs::write(run.join("experiment.yaml"), experiment).unwrap();
    let line = |step: u64| {
        let loss = 3.0 + 1.0 / step as f64;
        format!(
            "{}\n",
            json!({"step": step, "train/loss": loss, "evaluate/loss": loss + 0.5, "memory/peak": [1 << 20, 3 << 20]})
        )
    };
    fs::write(run.join("metrics.jsonl"), (1..=steps).map(line).collect::<String>()).unwrap();
    run
}

/// Everything that a run can have beside its metrics, with hostile words wherever words go.
fn adorn(run: &Path) {
    let spread = |part: &str| json!({"part": part, "owner": 0, "heads": [0, 1], "rows": [0, 4]});
    let tile = json!({"queries": spread("q<svg onload=alert(3)>"), "keys": spread("k")});
    let span = json!({"ph": "X", "pid": 0, "tid": 1, "ts": 1.0, "dur": 2000.0, "name": "x",
        "args": {"doing": "compute", "layer": 0, "pass": "forward", "hop": 0, "tiles": [tile], "pairs": 10}});
    let about = json!({"version": 1, "title": HOSTILE, "step": 2, "planned": null, "ranks": 1});
    let trace = json!({"otherData": {"annulus": about}, "traceEvents": [span]});
    fs::write(run.join("trace-2.json"), trace.to_string()).unwrap();
    let attempt = json!({"start": 0, "end": 60, "ending": HOSTILE, "resumed_from": null, "command": [HOSTILE],
        "ranks": 2, "strategy": HOSTILE});
    let machine = json!({"cpu": HOSTILE, "cores": 2, "system": "linux"});
    let manifest = json!({"version": "1", "commit": HOSTILE, "binary": "b", "experiment": "e", "data": "d",
        "weights": "w", "machine": machine, "attempts": [attempt]});
    fs::write(run.join("manifest.json"), manifest.to_string()).unwrap();
    let hashes = json!({"step": 1, "state": HOSTILE, "tensors": {HOSTILE: "00"}});
    fs::write(run.join("hashes.jsonl"), format!("{hashes}\n")).unwrap();
    fs::write(run.join("given.yaml"), format!("# {HOSTILE}\nname: tiny\n")).unwrap();
    fs::create_dir_all(run.join("evaluation")).unwrap();
    let mean = |mean: f64| json!({"mean": mean, "standard_error": 0.125});
    let length = |tokens: u64, loss: f64| json!({"tokens": tokens, "loss": mean(loss), "perplexity": 2.0, "by_window": [loss]});
    let bucket = json!({"from": 0, "to": 8, "loss": mean(2.5)});
    let read = json!({"name": HOSTILE, "weights": "w", "step": 7, "ranks": 1, "strategy": "local", "windows": 1,
        "targets": 4, "lengths": [length(4, 2.75), length(8, 2.25)], "positions": [bucket]});
    fs::write(run.join("evaluation/perplexity.json"), read.to_string()).unwrap();
    let right = json!({"right": 3, "of": 4, "low": 0.3, "high": 0.95});
    let chats = json!({"tokens": 8, "conversations": 2, "cut": 0, "left_out": 0, "targets": 6, "loss": mean(1.25), "perplexity": 3.5,
        "right": right, "not_whole": 2, "answers": []});
    let chats = json!({"name": HOSTILE, "weights": "w", "step": 7, "ranks": 1, "strategy": "local", "lengths": [chats]});
    fs::write(run.join("evaluation/conversations.json"), chats.to_string()).unwrap();
    let cell = json!({"task": HOSTILE, "tokens": 8, "depth": 0.0, "right": right, "parts": mean(0.75), "loss": mean(1.0), "answers": []});
    let found = json!({"name": HOSTILE, "weights": "w", "step": 7, "ranks": 1, "cells": [cell]});
    fs::write(run.join("evaluation/tasks.json"), found.to_string()).unwrap();
}

/// Numbers of a panel, as they are written for programs.
fn numbers(page: &Html, panel: &str) -> Vec<f64> {
    let data = Selector::parse(&format!("section#{panel} data[value]")).unwrap();
    let values = page.select(&data).filter_map(|one| one.value().attr("value"));
    values.map(|value| value.parse().expect("a number")).collect()
}

fn text(page: &Html, selector: &str) -> String {
    page.select(&Selector::parse(selector).unwrap()).flat_map(|one| one.text()).collect()
}

/// Fails where a page has what could fetch or run anything.
#[track_caller]
fn assert_still(page: &Html) {
    for element in page.select(&Selector::parse("*").unwrap()) {
        let name = element.value().name();
        assert!(
            !["script", "link", "img", "iframe", "object", "embed", "image", "use", "base"]
                .contains(&name),
            "<{name}>"
        );
        for (key, value) in element.value().attrs() {
            assert!(
                !key.starts_with("on") && key != "src" && key != "srcset",
                "{name} {key}={value}"
            );
            let is_within = !key.ends_with("href") || value.starts_with('#');
            assert!(
                is_within && !(key == "style" && value.contains("url")),
                "{name} {key}={value}"
            );
        }
    }
    let style = text(page, "style");
    assert!(style.len() > 500 && !style.contains("@import") && !style.contains("url("));
    let policy = Selector::parse("meta[http-equiv=Content-Security-Policy]").unwrap();
    let policy = page.select(&policy).next().and_then(|meta| meta.value().attr("content"));
    assert_eq!(policy, Some("default-src 'none'; style-src 'unsafe-inline'"));
}

#[test]
fn what_a_run_is_called_neither_turns_the_page_nor_controls_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let runs = ["plain", "turned\u{202e}and\u{1b}[31mred"].map(|name| run(folder.path(), name, 4));
    let page = report(&runs, &unplanned).unwrap();
    assert!(page.contains("turned\\u202eand\\u001b[31mred"), "the name is shown");
    let obeyed = |letter: char| letter == '\u{202e}' || letter.is_control() && letter != '\n';
    assert_eq!(page.chars().find(|letter| obeyed(*letter)), None);
}

#[test]
fn a_run_without_anything_has_every_panel_with_the_key_that_would_log_it() {
    let folder = tempfile::tempdir().unwrap();
    let page = report(&[run(folder.path(), "bare", 0)], &unplanned).unwrap();
    let page = Html::parse_document(&page);
    let sections = Selector::parse("main > section").unwrap();
    let ids: Vec<_> = page.select(&sections).filter_map(|one| one.value().id()).collect();
    assert_eq!(ids, PANELS);
    for (panel, key) in [
        ("loss", "every.log"),
        ("loss-by-length", "evaluation.lengths"),
        ("needle", "evaluation.tasks"),
        ("plan", "every.log"),
        ("ring", "trace.steps"),
        ("memory", "every.log"),
        ("manifest", "manifest.json"),
        ("hashes", "every.hash"),
    ] {
        let said = text(&page, &format!("section#{panel} p.absent code"));
        assert!(said.contains(key), "{panel}: {said}");
    }
    assert!(text(&page, "section#experiment pre").contains("name: tiny"));
    assert_still(&page);
}

#[test]
fn words_of_a_run_stay_words_in_every_panel() {
    let folder = tempfile::tempdir().unwrap();
    let name = "<script>alert(1)</script>";
    let one = run(folder.path(), name, 3);
    adorn(&one);
    let html = report(&[one.clone(), run(folder.path(), "two", 3)], &unplanned).unwrap();
    let page = Html::parse_document(&html);
    assert_still(&page);
    assert!(text(&page, "header code").contains(name));
    for (panel, words) in [
        ("needle", HOSTILE),
        ("plan", HOSTILE),
        ("ring", "q<svg onload=alert(3)>0xk0"),
        ("experiment", HOSTILE),
        ("manifest", HOSTILE),
    ] {
        assert!(text(&page, &format!("section#{panel}")).contains(words), "{panel}");
    }
    let hash = Selector::parse("section#hashes code[title]").unwrap();
    let hash = page.select(&hash).next().expect("a hash").value().attr("title");
    assert_eq!(hash, Some(HOSTILE));
}

#[test]
fn numbers_are_those_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "one", 3), run(folder.path(), "two", 7)];
    adorn(&runs[0]);
    let page = Html::parse_document(&report(&runs, &unplanned).unwrap());
    let (third, seventh) = (3.0 + 1.0 / 3.0, 3.0 + 1.0 / 7.0);
    // First, last, least and most of training, last and least of evaluation, how many.
    let wanted = [
        [4.0, 4.0],
        [third, seventh],
        [third, seventh],
        [4.0, 4.0],
        [third + 0.5, seventh + 0.5],
        [third + 0.5, seventh + 0.5],
        [3.0, 7.0],
    ];
    assert_eq!(numbers(&page, "loss"), wanted.concat());
    // By length, and of conversations the loss and the share of right answers.
    assert_eq!(numbers(&page, "loss-by-length"), [2.75, 2.25, 1.25, 0.75]);
    assert!(text(&page, "section#loss-by-length").contains("3/4, 2 not whole"));
    assert_eq!(numbers(&page, "needle"), [0.75]);
    let memory = numbers(&page, "memory");
    assert_eq!(
        memory,
        [1_048_576.0, 3_145_728.0, 1_048_576.0, 3_145_728.0],
        "both ranks of both runs"
    );
    // 2 ms of computing.
    assert_eq!(numbers(&page, "ring")[0], 2.0);
    assert!(text(&page, "section#hashes tbody").contains("hashed steps1"));
    assert!(text(&page, "section#manifest").contains("1970-01-01 00:01:00"));
}

#[test]
fn many_long_runs_are_thinned_and_one_page_is_never_larger_than_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let runs: Vec<PathBuf> =
        (0..MOST_RUNS).map(|number| run(folder.path(), &format!("run-{number}"), 4100)).collect();
    for run in &runs {
        adorn(run);
        fs::write(run.join("given.yaml"), format!("# {}\nname: tiny\n", "<".repeat(200_000)))
            .unwrap();
    }
    let html = report(&runs, &unplanned).unwrap();
    assert!(html.len() <= LARGEST && html.len() > 200_000, "{}", html.len());
    let page = Html::parse_document(&html);
    let lines = page.select(&Selector::parse("section#loss polyline[points]").unwrap()).count();
    // Two curves of each, and its entry in the legend.
    assert_eq!(lines, 3 * MOST_RUNS);
    let caption = text(&page, "section#loss figcaption");
    assert!(caption.contains("the mean of up to 11 neighbouring logged steps"), "{caption}");
    let sections = Selector::parse("main > section").unwrap();
    assert_eq!(page.select(&sections).count(), PANELS.len());

    let more: Vec<PathBuf> = runs.iter().chain(&runs[..1]).cloned().collect();
    for none in [&more[..], &[]] {
        let error = report(none, &unplanned).unwrap_err();
        assert!(
            error.to_string().contains("expected 1 to 16") && error.hint().is_some(),
            "{error}"
        );
    }
}

#[test]
fn a_panel_that_would_make_the_page_too_large_is_left_out_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path(), "run", 3);
    adorn(&run);
    let mean = json!({"mean": 1.5, "standard_error": 0.0});
    let length = |tokens: u32| json!({"tokens": tokens, "loss": mean, "perplexity": 2.0, "by_window": [1.5]});
    let lengths: Vec<_> = (1..20_000).map(length).collect();
    let read = json!({"name": "n", "weights": "w", "step": 7, "ranks": 1, "strategy": "local", "windows": 1,
        "targets": 1, "lengths": lengths, "positions": []});
    fs::write(run.join("evaluation/perplexity.json"), read.to_string()).unwrap();
    let html = report(&[run], &unplanned).unwrap();
    assert!(html.len() <= LARGEST, "{}", html.len());
    let page = Html::parse_document(&html);
    let said = text(&page, "section#loss-by-length");
    assert!(said.contains("Left out: it has ") && said.contains("Give fewer runs"), "{said}");
    assert_eq!(numbers(&page, "needle"), [0.75], "what comes behind it is there");
}

#[test]
fn what_cannot_be_read_is_named_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |file: &str, text: &str| -> TrainError {
        let run = run(folder.path(), "run", 3);
        adorn(&run);
        fs::write(run.join(file), text).unwrap();
        report(&[run], &unplanned).unwrap_err()
    };
    for (file, broken, wanted) in [
        (
            "metrics.jsonl",
            "{\"step\": 1}\n{\"step\": 2, \"train/l\n{\"step\": 3}\n",
            "metrics.jsonl`, line 2: ",
        ),
        ("hashes.jsonl", "{}\n{}\n", "hashes.jsonl`, line 1: "),
        ("manifest.json", "{\n\"version\": 3}\n", "manifest.json`: invalid type: integer `3`"),
        ("manifest.json", "{\n\"version\": 3}\n", "at line 2 column "),
        ("evaluation/tasks.json", "{\n}", "tasks.json`: missing field"),
    ] {
        let error = refused(file, broken);
        assert!(error.to_string().contains(wanted), "{error}");
        assert!(error.hint().is_some() && error.exit_code() == 3, "{error}");
    }
    let error = refused("experiment.yaml", "name: tiny\nmodle: {}\n");
    assert!(error.to_string().contains("experiment.yaml:2"), "{error}");
    let error = report(&[folder.path().join("nowhere")], &unplanned).unwrap_err();
    assert!(error.to_string().contains("nowhere` is not a run's folder") && error.hint().is_some());
}

#[test]
fn a_torn_last_line_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path(), "run", 3);
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    fs::write(run.join("metrics.jsonl"), format!("{text}{{\"step\": 4, \"tra")).unwrap();
    let page = Html::parse_document(&report(&[run], &unplanned).unwrap());
    assert!(text_of_loss(&page).contains("is torn, and left out"));
    assert!(numbers(&page, "loss").ends_with(&[3.0]));
}

fn text_of_loss(page: &Html) -> String {
    text(page, "section#loss")
}
