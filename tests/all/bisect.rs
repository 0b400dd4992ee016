//! Hashes of the state: the same whoever holds what and however a run ends, and where two runs differ first.

use std::fs;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");
const EACH: &str = "every.hash=1";
const STEPS: &str = "schedule.steps=6";
const LEVEL: &str = "schedule.decay=constant";

fn bisect(place: &Place, runs: [&str; 2]) -> Ran {
    run(ANNULUS, &place.path(""), &["bisect", runs[0], runs[1], "--json"])
}

fn hashes(place: &Place, output: &str) -> String {
    fs::read_to_string(place.path(output).join("hashes.jsonl")).expect("the run hashed its state")
}

/// The step behind which they differ first, and how many tensors of a kind do.
fn first(found: &Value) -> (u64, impl Fn(&str) -> usize + '_) {
    let first = &found["first"];
    let many = move |kind: &str| first["kinds"][kind][0].as_array().map_or(0, Vec::len);
    (first["step"].as_u64().expect("a step"), many)
}

#[test]
fn hashes_do_not_depend_on_who_holds_what_or_on_how_often_a_run_was_resumed() {
    let place = Place::new(ANNULUS);
    place.train("whole", &[STEPS, LEVEL, EACH]).ended(0);
    let whole = hashes(&place, "whole");
    assert_eq!(whole.lines().count(), 6);
    place.train("again", &["schedule.steps=3", LEVEL, EACH]).ended(0);
    place.train("again", &[STEPS, LEVEL, EACH]).ended(0);
    assert!(hashes(&place, "again") == whole, "a resumed run hashes otherwise");
    // A line that was torn by a death, and lines behind the checkpoint, are written again.
    let torn = whole.lines().take(4).chain(["{\"step\":5,\"st"]).collect::<Vec<_>>().join("\n");
    fs::write(place.path("again").join("hashes.jsonl"), torn).unwrap();
    place.train("again", &["schedule.steps=8", LEVEL, EACH]).ended(0);
    assert!(hashes(&place, "again").starts_with(&whole[..whole.len() / 2]));
    let alike = bisect(&place, ["whole", "again"]).ended(0).json().remove(0);
    assert!(alike["first"].is_null() && alike["alike"].as_u64() >= Some(4), "{alike}");
}

#[test]
fn what_differs_first_is_found_by_step_and_tensor() {
    let place = Place::new(ANNULUS);
    let other = |output: &str, change: &str| {
        place.train(output, &[STEPS, EACH, change]).ended(0);
    };
    other("a", "every.log=1");
    // Other weights are left of the same gradients.
    other("decayed", "optimizer.weight_decay=0.3");
    let found = bisect(&place, ["a", "decayed"]).ended(10).json().remove(0);
    let (step, many) = first(&found);
    assert!(step == 1 && found["alike"].is_null() && many("gradients") == 0, "{found}");
    assert!(many("weights") > 0 && many("first") == 0, "{found}");
    // Another sample in a step: gradients differ there.
    other("seeded", "seed=9");
    let found = bisect(&place, ["a", "seeded"]).ended(10).json().remove(0);
    let (step, many) = first(&found);
    assert!(step == 1 && many("gradients") > 0, "{found}");
}

#[test]
fn runs_without_hashes_are_answered() {
    let place = Place::new(ANNULUS);
    place.train("a", &["schedule.steps=2"]).ended(0);
    place.train("b", &["schedule.steps=2", "every.hash=2"]).ended(0);
    let said = bisect(&place, ["a", "b"]).ended(2).stderr.clone();
    assert!(
        said.contains("`a` has no hashes of the state") && said.contains("every.hash"),
        "{said}"
    );
}
