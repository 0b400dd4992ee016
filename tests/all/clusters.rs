//! What a step takes elsewhere, and how methods compare: asked of the whole program.

use std::fs;

use annulus_sequence::Strategy;
use annulus_tests::runs::Place;
use annulus_tests::{root, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn ask(place: &Place, arguments: &[&str]) -> Value {
    run(ANNULUS, &place.path(""), arguments).ended(0).json().remove(0)
}

fn shipped(name: &str) -> String {
    root().join("experiments/clusters").join(name).display().to_string()
}

#[test]
fn every_strategy_is_estimated_on_a_described_cluster() {
    let place = Place::new(ANNULUS);
    let cluster = shipped("h100.yaml");
    let base = ["plan", "experiment.yaml", "--cluster", &cluster, "mesh.sequence=4"];
    let arguments = [&base[..], &["--json", "--svg", "spot.svg"]].concat();
    let shown = ask(&place, &arguments);
    let strategies = shown["strategies"].as_array().expect("strategies");
    for strategy in Strategy::ALL {
        let of = |shown: &&Value| {
            shown["strategy"].as_str().is_some_and(|name| name.starts_with(strategy.name()))
        };
        let found = strategies.iter().find(of).expect("a line for each");
        let runs = found["step"].as_f64().is_some_and(|seconds| seconds > 0.0);
        assert_eq!(runs, strategy != Strategy::Local, "{found}");
        assert_eq!(found["refused"].is_string(), !runs, "{found}");
    }
    assert!(shown["auto"].is_string() && shown["sweet_spot"].as_array().is_some(), "{shown}");
    let svg = fs::read_to_string(place.path("spot.svg")).expect("written");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(!place.path("run").exists(), "nothing was trained");
}

/// Where nothing can run, memory is not to blame: the reasons are those that a run would give.
#[test]
fn where_no_strategy_can_run_the_reasons_are_said() {
    let place = Place::new(ANNULUS);
    let cluster = shipped("h100.yaml");
    let uneven = ["attention.strategy=auto", "mesh.sequence=4", "mesh.tensor=2", "data.tokens=50"];
    let said = |more: &[&str]| {
        let words = [&["plan", "experiment.yaml"], &uneven[..], more].concat();
        let ran = run(ANNULUS, &place.path(""), &words);
        ran.ended(2).stderr.clone()
    };
    let asked = said(&["--cluster", &cluster]);
    let reason = "2 tensor-parallel ranks cannot share a shard of 13 tokens evenly";
    assert!(asked.contains("no strategy can run") && asked.contains(reason), "{asked}");
    let named = said(&[&format!("mesh.cluster={cluster}")]);
    assert!(named.contains(reason), "{named}");
}

/// An experiment that names a cluster is held to the memory of its devices, by every command that only plans.
#[test]
fn a_named_cluster_has_to_have_room() {
    let place = Place::new(ANNULUS);
    let named = format!("mesh.cluster={}", shipped("h100.yaml"));
    let said = |command: &str, more: &str, code: i32| {
        let words = [command, "experiment.yaml", "mesh.sequence=4", &named, more];
        let ran = run(ANNULUS, &place.path(""), &words);
        let ran = ran.ended(code);
        (ran.stdout.clone(), ran.stderr.clone())
    };
    for command in ["check", "plan"] {
        let (out, _) = said(command, "seed=3", 0);
        assert!(
            out.contains("the fullest device of the cluster needs ") && out.contains("fits"),
            "{out}"
        );
        let (_, error) = said(command, "memory.budget=100k", 5);
        let wanted = "of 100.0 KiB that it may take: it does not fit";
        assert!(error.contains(wanted) && error.contains("`memory.budget` (three"), "{error}");
    }
    // A node's memory takes what all of its devices offload.
    let cluster = fs::read_to_string(shipped("h100.yaml")).expect("a cluster");
    let small = cluster.replace("memory: 2TB", "memory: 1kB");
    assert_ne!(small, cluster);
    place.write("small.yaml", &small);
    let words = ["check", "experiment.yaml", "mesh.sequence=4", "mesh.cluster=small.yaml"];
    let ran =
        run(ANNULUS, &place.path(""), &[&words[..], &["memory.offload=activations"]].concat());
    let error = &ran.ended(5).stderr;
    assert!(error.contains("a node of the cluster") && error.contains("offload less"), "{error}");
}

/// Strategies are chosen for the longest phase, but a shorter one may hold more at once.
#[test]
fn every_phase_has_to_fit() {
    let place = Place::new(ANNULUS);
    let cluster = shipped("h100.yaml");
    let stages = "stages={ many: { tokens: 48, steps: 9, batch: 512 }, long: { tokens: 96, steps: 9, batch: 2, reset: [] } }";
    let plan = ["plan", "experiment.yaml", "--cluster", &cluster, stages];
    let phases = ["data.tokens=null", "schedule.steps=null", "memory.budget=10MB"];
    let said = |more: &str, code: i32| {
        let words = [&plan[..], &phases, &[more]].concat();
        run(ANNULUS, &place.path(""), &words).ended(code).stderr.clone()
    };
    let named = said("seed=3", 5);
    assert!(named.contains("phase `many`: `striped` needs 1"), "{named}");
    let remark = said("memory.budget=100MB", 0);
    assert!(remark.contains("phase `many` needs the most memory: 2"), "{remark}");
}

#[test]
fn the_textbooks_case_needs_no_experiment() {
    let place = Place::new(ANNULUS);
    let text = run(ANNULUS, &place.path(""), &["plan", "--compare"]).ended(0).stdout.clone();
    assert!(text.contains("64 GB, 0.32 s"), "{text}");
    let asked = ["plan", "--compare", "--tokens", "64k", "--ranks", "4", "--json"];
    for wrong in [&["--key-value-heads", "3"][..], &["--hidden", "100", "--head-dim", "64"]] {
        run(ANNULUS, &place.path(""), &[&["plan", "--compare"], wrong].concat()).ended(2);
    }
    run(ANNULUS, &place.path(""), &["plan", "--compare", "--tokens", "1G"]).ended(0);
    let shown = ask(&place, &asked);
    let methods = shown["methods"].as_array().expect("methods");
    let names: Vec<&str> = methods.iter().filter_map(|method| method["name"].as_str()).collect();
    for name in ["single device", "naive broadcast", "sliding window", "Li et al.'s ring", "ring"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

/// A run whose strategy is left open says what it chose from, trains under that, writes it down, and goes on with it.
#[test]
fn a_strategy_that_is_left_open_is_chosen_once() {
    let place = Place::new(ANNULUS);
    let open = ["attention.strategy=auto", "mesh.sequence=2", "schedule.warmup=0"];
    let train =
        |steps: &str| place.train("open", &[&open[..], &["schedule.steps=4", steps]].concat());
    let said = train("schedule.stop=2").ended(0).stderr.clone();
    let chosen = said.split_once("auto takes `").expect("a table").1.split('`').next();
    let word = chosen.and_then(|label| label.split(' ').next()).expect("a strategy");
    let plan =
        || fs::read_to_string(place.path("open/experiment.yaml")).expect("the resolved plan");
    let written = plan();
    assert!(written.contains(&format!("strategy: {word}\n")), "{word}: {written}");
    assert!(said.contains("GFLOP/s") && said.contains(" others: under `choice` in "), "{said}");
    let text = fs::read_to_string(place.path("open/manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(manifest["choice"]["auto"].as_str(), chosen, "{text}");
    let said = train("schedule.stop=4").ended(0).stderr.clone();
    assert!(!said.contains("auto takes") && said.contains("from step 2"), "{said}");
    let split = |plan: &str| plan[plan.find("attention:").expect("a section")..].to_owned();
    assert_eq!(split(&plan()).split("\n\n").next(), split(&written).split("\n\n").next());
    let other = [&open[..1], &["mesh.sequence=3", "schedule.steps=4"]].concat();
    let planned =
        ask(&place, &[&["plan", "experiment.yaml", "--json", "output=open"], &other[..]].concat());
    assert!(planned["choice"]["auto"].is_string(), "other ranks, another choice");
}

#[test]
fn schedules_are_proved_without_running() {
    let place = Place::new(ANNULUS);
    for strategy in ["striped", "usp", "megatron"] {
        let split = [&format!("attention.strategy={strategy}"), "mesh.sequence=4"];
        let shown = ask(&place, &[&["prove", "experiment.yaml", "--json"], &split[..]].concat());
        assert_eq!(shown["proved"], true, "{shown}");
        let schedules = shown["schedules"].as_array().expect("both");
        let passes: Vec<&Value> = schedules.iter().map(|schedule| &schedule["pass"]).collect();
        assert_eq!(passes, ["forward", "backward"]);
        assert_eq!(schedules[0]["pairs"], schedules[1]["pairs"]);
    }
    let text = run(ANNULUS, &place.path(""), &["prove", "experiment.yaml"]).ended(0).stdout.clone();
    assert!(text.contains("proved: nothing deadlocks"), "{text}");
    let wrong = ["prove", "experiment.yaml", "attention.strategy=usp", "attention.shape=[3, 5]"];
    let said = run(ANNULUS, &place.path(""), &wrong).ended(2).stderr.clone();
    assert!(said.contains("`usp` of shape [3, 5] is 15 ranks, but a sequence has "), "{said}");
    assert!(!place.path("run").exists(), "nothing was trained");
}
