//! Dropout of attention while training.

use crate::common::{Place, difference, losses, state};
use annulus_train::Outcome;

const DROPOUT: (&str, &str) = ("attention.dropout", "0.3");
/// A few steps, evaluated only at the end.
const SHORT: [(&str, &str); 2] = [("schedule.steps", "6"), DROPOUT];

fn with<'a>(changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    SHORT.iter().chain(changes).copied().collect()
}

fn run(place: &Place, output: &str, changes: &[(&str, &str)]) -> Outcome {
    place.run_in(output, &with(changes))
}

/// The same losses on any ranks, in any strategy and layout, with or without recomputation and micro-batches.
#[test]
fn what_is_left_out_depends_on_positions_alone() {
    let place = Place::new();
    let alone = losses(&run(&place, "alone", &[]));
    let other = losses(&place.run_in("none", &[("schedule.steps", "6")]));
    assert!(difference(&alone, &other) > 1e-4, "{alone:?} {other:?}");
    let ways: [&[(&str, &str)]; 7] = [
        &[("memory.recompute", "layer")],
        &[("memory.recompute", "none"), ("memory.micro_batch", "1")],
        &[("mesh.sequence", "3"), ("attention.strategy", "striped")],
        &[
            ("mesh.sequence", "4"),
            ("attention.strategy", "megatron"),
            ("memory.recompute", "layer"),
        ],
        &[("mesh.sequence", "2"), ("attention.strategy", "ulysses"), ("mesh.data", "2")],
        &[
            ("mesh.sequence", "4"),
            ("attention.strategy", "ring"),
            ("attention.backward", "queries"),
        ],
        &[("mesh.data", "4"), ("attention.kernel", "reference")],
    ];
    for (index, way) in ways.into_iter().enumerate() {
        let ours = losses(&run(&place, &format!("way-{index}"), way));
        let off = difference(&ours, &alone);
        assert!(off <= 1e-5, "{way:?}: {off:.1e}, {ours:?} {alone:?}");
    }
}

/// Three steps and three more give the bits of six; no step drops what the one before did.
#[test]
fn a_run_that_goes_on_leaves_out_the_same() {
    let place = Place::new();
    let whole = run(&place, "whole", &[("every.checkpoint", "3")]);
    run(&place, "parts", &[("every.checkpoint", "3"), ("schedule.stop", "3")]);
    let parts = run(&place, "parts", &[("every.checkpoint", "3")]);
    let [whole, parts] = [whole, parts].map(|outcome| state(&outcome.checkpoint.unwrap()));
    assert!(whole == parts);
}

/// Evaluations drop nothing: for a model that does not learn they equal those of a run without dropout.
#[test]
fn evaluations_leave_nothing_out() {
    let place = Place::new();
    let still = [("optimizer.learning_rate", "1e-30"), ("schedule.steps", "2")];
    let evaluated = |output: &str, dropout: &str| {
        let changes: Vec<_> = still.into_iter().chain([("attention.dropout", dropout)]).collect();
        let outcome = place.run_in(output, &changes);
        let lines = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
        let last = lines.lines().find(|line| line.contains("evaluate/loss")).unwrap().to_owned();
        (losses(&outcome)[0], crate::common::number(&last, "evaluate/loss"))
    };
    let (dropped, plain) = (evaluated("dropped", "0.5"), evaluated("plain", "0"));
    assert!((dropped.0 - plain.0).abs() > 1e-6);
    assert!((dropped.1 - plain.1).abs() < 1e-9, "{} {}", dropped.1, plain.1);
}
