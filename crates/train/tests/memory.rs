//! Memory by class: what a step holds is what was planned.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::alloc::System;

use annulus_train::memory::Counting;
use common::Place;

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting::new(System);

#[test]
fn a_run_knows_the_peak_of_every_rank() {
    let place = Place::new();
    let split = [("mesh.sequence", "2"), ("attention.strategy", "ring"), ("schedule.stop", "2")];
    let plan = place.plan(&split);
    let outcome = place.run(&split).unwrap();
    let text = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let peaks = line["memory/peak"].as_array().unwrap();
    assert_eq!(peaks.len(), 2);
    for (peak, plan) in peaks.iter().zip(&plan.ranks) {
        // Weights, gradients and moments are there at once, whatever else is.
        let state = plan.peak.weights + plan.peak.gradients + plan.peak.optimizer;
        let peak = peak.as_u64().unwrap();
        assert!(peak > state * 9 / 10 && peak < 50 * state, "{peak} of {state}");
    }
}
