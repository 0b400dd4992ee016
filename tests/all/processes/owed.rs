//! Evaluations that were due when a run began: all processes make them, though only the first reads what was logged.

use std::fs;

use annulus_tests::runs::{Place, metrics};
use serde_json::Value;

use super::{ANNULUS, MPICH};

const MESH: [&str; 2] = ["mesh.sequence=2", "mesh.data=2"];
const STEPS: &str = "schedule.steps=4";

/// The losses of evaluations, with their steps.
fn evaluated(place: &Place, output: &str) -> Vec<(u64, f64)> {
    let of = |line: &Value| Some((line["step"].as_u64()?, line["evaluate/loss"].as_f64()?));
    metrics(&place.path(output)).iter().filter_map(of).collect()
}

#[test]
fn a_run_that_was_not_evaluated_at_its_last_step_is_by_all_processes() {
    let place = Place::new(ANNULUS);
    place.train("run", &[&MESH[..], &[STEPS]].concat()).ended(0);
    let whole = evaluated(&place, "run");
    let path = place.path("run/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let before = text.trim_end().rfind('\n').unwrap() + 1;
    fs::write(&path, &text[..before]).unwrap();
    let words = [&["train", "experiment.yaml", STEPS], &MESH[..]].concat();
    let Some(ran) = MPICH.run(&place, 2, &words) else { return };
    ran.ended(0);
    assert_eq!(evaluated(&place, "run"), whole);
}

#[test]
fn an_evaluation_before_the_first_step_is_by_all_processes() {
    let place = Place::new(ANNULUS);
    let keys = ["every.evaluate_on_start=true", "every.evaluate=2", STEPS];
    place.train("threads", &[&MESH[..], &keys].concat()).ended(0);
    let steps: Vec<u64> = evaluated(&place, "threads").iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 2, 4]);
    let words = [&["train", "experiment.yaml", "output=processes"], &keys[..], &MESH].concat();
    let Some(ran) = MPICH.run(&place, 2, &words) else { return };
    ran.ended(0);
    assert_eq!(evaluated(&place, "processes"), evaluated(&place, "threads"));
}

#[test]
fn a_fork_at_a_step_that_is_evaluated_is_by_all_processes() {
    let place = Place::new(ANNULUS);
    place.train("first", &[&MESH[..], &[STEPS]].concat()).ended(0);
    let fork = [
        &["train", "experiment.yaml", "--from", "first/step-2", STEPS, "every.evaluate=2"],
        &MESH[..],
    ]
    .concat();
    let threads = [&fork[..], &["output=threads"]].concat();
    annulus_tests::run(ANNULUS, &place.path(""), &threads).ended(0);
    let Some(ran) = MPICH.run(&place, 2, &[&fork[..], &["output=processes"]].concat()) else {
        return;
    };
    ran.ended(0);
    let steps: Vec<u64> = evaluated(&place, "threads").iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [2, 4]);
    assert_eq!(evaluated(&place, "processes"), evaluated(&place, "threads"));
}
