//! What `check` says before anything runs: all that `train` would refuse, and what it needs.

use std::collections::BTreeSet;
use std::fs;

use annulus_tests::runs::{Place, metrics};
use annulus_tests::{Ran, root, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn annulus(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), arguments)
}

/// For another machine data may be missing; what is here is checked, also where a pattern names it.
#[test]
fn data_for_another_machine_is_checked_where_it_is_here() {
    let place = Place::new(ANNULUS);
    place.write("part-1.txt", "short");
    let cluster = root().join("experiments/clusters/processors.yaml");
    let cluster = format!("mesh.cluster={}", cluster.display());
    for (path, code, unchecked) in [("part-?.txt", 3, false), ("absent-?.txt", 0, true)] {
        let path = format!("data.path={path}");
        let ran = annulus(&place, &["check", "experiment.yaml", &cluster, &path]);
        let said = ran.ended(code).stderr.contains("not checked against it");
        assert_eq!(said, unchecked, "{}", ran.stderr);
    }
}

#[test]
fn check_and_plan_refuse_what_train_refuses() {
    let place = Place::new(ANNULUS);
    let huge =
        ["model.hidden_size=65536", "model.intermediate_size=262144", "model.num_hidden_layers=64"];
    let cases: [(&[&str], i32, &str); 5] = [
        (&huge, 5, "it does not fit"),
        (&["memory.budget=100k"], 5, "raise `memory.budget` to "),
        (&["device=cuda"], 2, "`device: cuda`"),
        (&["data.format=chat"], 3, "no chat template"),
        (&["data.tokens=32k"], 3, "too short"),
    ];
    for (changes, code, wanted) in cases {
        let mut said = Vec::new();
        for command in ["check", "plan", "train"] {
            let ran = annulus(&place, &[&[command, "experiment.yaml"], changes].concat());
            let errors = ran.stderr.lines().skip_while(|line| !line.starts_with("error"));
            said.push(errors.collect::<Vec<_>>().join("\n"));
            assert_eq!(ran.code, Some(code), "{command} {changes:?}: {}", ran.stderr);
        }
        assert!(said[0].contains(wanted) || wanted == "too short", "{}", said[0]);
        assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "{said:#?}");
    }
    assert!(!place.path("run").exists(), "nothing began");
    let plan = annulus(&place, &["plan", "experiment.yaml", "memory.budget=80GB"]);
    assert!(plan.ended(0).stdout.contains(": it fits"), "{}", plan.stdout);
}

/// A tag that `check` did not know would be refused by mistake.
#[test]
fn every_tag_that_a_run_logs_can_be_expected() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2", "trace.steps=[2]"]).ended(0);
    let logged = metrics(&place.path("run"));
    let tags: BTreeSet<String> = logged
        .iter()
        .flat_map(|line| line.as_object().expect("an object").keys().cloned())
        .filter(|key| key != "step")
        .collect();
    assert!(tags.len() > 12, "{tags:?}");
    let bounds: Vec<String> = tags.iter().map(|tag| format!("expect.{tag}.min=-1")).collect();
    let arguments =
        ["check", "experiment.yaml"].into_iter().chain(bounds.iter().map(String::as_str));
    annulus(&place, &arguments.collect::<Vec<_>>()).ended(0);
}

#[test]
fn check_holds_what_is_named_to_what_is_there() {
    let place = Place::new(ANNULUS);
    place.train("first", &["model.vocab_size=300", "schedule.steps=2"]).ended(0);
    annulus(&place, &["export", "first", "--out", "model"]).ended(0);
    let check =
        |changes: &[&str]| annulus(&place, &[&["check", "experiment.yaml"], changes].concat());
    let model = "model={ path: model }";
    check(&[model]).ended(0);
    // What ids mean is not guessed.
    fs::remove_file(place.path("model/tokenizer.json")).expect("a tokenizer");
    let said = check(&[model]).ended(2).stderr.clone();
    assert!(said.contains("has no `tokenizer.json`") && said.contains("of 300 tokens"), "{said}");
    check(&[model, "data.tokenizer=bytes"]).ended(0);
    // A folder of adapters is told from one that is no model.
    fs::create_dir(place.path("adapters")).expect("a folder");
    place.write("adapters/adapter_config.json", "{}");
    let said = check(&["model={ path: adapters }"]).ended(3).stderr.clone();
    assert!(said.contains("holds adapters without their model"), "{said}");
    // A file of weights that is cut short is found by its header.
    let weights = place.path("model/model.safetensors");
    let whole = fs::read(&weights).expect("weights");
    fs::write(&weights, &whole[..whole.len() - 100]).expect("a file");
    let said = check(&[model, "data.tokenizer=bytes"]).ended(3).stderr.clone();
    assert!(said.contains("model.safetensors") && said.contains("truncated"), "{said}");
    for (change, wanted) in [
        ("data.path=[text.txt, absent.txt]", "there is no file or folder `absent.txt`"),
        ("model={ path: absent }", "there is no folder `absent`"),
    ] {
        for command in ["check", "train"] {
            let said = annulus(&place, &[command, "experiment.yaml", change]);
            assert!(said.ended(3).stderr.contains(wanted), "{}", said.stderr);
        }
    }
}

/// A text of more than a megabyte is not read, which is said once for all runs of a sweep.
#[test]
fn what_is_not_read_for_a_sweep_is_said_once() {
    let place = Place::new(ANNULUS);
    place.write("text.txt", &"text ".repeat(1 << 18));
    let tiny = fs::read_to_string(place.path("experiment.yaml")).expect("an experiment");
    place.write("sweep.yaml", &(tiny + "sweep: { keys: { data.tokens: [24, 48] }, seeds: 2 }\n"));
    for file in ["experiment.yaml", "sweep.yaml"] {
        let ran = annulus(&place, &["check", file]);
        let notes = ran.ended(0).stderr.matches("note: data of more than 1 MiB is not read here");
        assert_eq!(notes.count(), 1, "{file}: {}", ran.stderr);
    }
}

#[test]
fn the_budget_that_is_asked_for_would_do() {
    let place = Place::new(ANNULUS);
    let said = annulus(&place, &["check", "experiment.yaml", "memory.budget=100k"]);
    let hint = said.stderr.split("raise `memory.budget` to ").nth(1).expect("a way out");
    let budget = format!("memory.budget={}", hint.split(',').next().expect("a number"));
    annulus(&place, &["check", "experiment.yaml", &budget]).ended(0);
}
