//! What a start that goes on says where it rounds otherwise than the one before.

use crate::common::{BASE, Place, Warnings, losses};
use annulus_experiment::{Override, parse};
use annulus_train::{Opened, Outcome, RunOptions, TrainError, resolve, run_phases};

/// Trains the tiny experiment, of these phases or without; the warnings are those about bits.
fn train(
    place: &Place,
    output: &str,
    stages: Option<&str>,
    changes: &[(&str, &str)],
) -> (Outcome, Vec<String>) {
    let (text, output) = (place.path("text.txt"), place.path(output));
    let mut given =
        vec![("data.path", text.to_str().unwrap()), ("output", output.to_str().unwrap())];
    given.extend(stages.map(|stages| ("stages", stages)));
    let overrides: Vec<Override> = given
        .iter()
        .chain(changes)
        .map(|&(key, value)| Override { key: key.to_owned(), value: value.to_owned() })
        .collect();
    let yaml = match stages {
        Some(_) => BASE.replace("  tokens: 48\n", "").replace("  steps: 20\n", ""),
        None => BASE.to_owned(),
    };
    let experiment = parse("tiny.yaml", &yaml, &overrides).unwrap();
    let opened = resolve(experiment, &mut |_, _, _| unreachable!("no model of the hub"));
    let plans = opened.and_then(|opened: Opened| opened.plans(4));
    let plans = plans.unwrap_or_else(|error: TrainError| panic!("{error}"));
    let mut console = Warnings::default();
    let outcome = run_phases(&plans, RunOptions::new(yaml, 4), &mut console).unwrap();
    let mut said = console.0;
    said.retain(|text| text.contains("bit-identical"));
    (outcome, said)
}

#[test]
fn chunks_of_more_rows_than_there_are_round_alike() {
    let place = Place::new();
    let go = |output: &str, stop: &str, loss: &str, mlp: &str| {
        let chunks = [("memory.loss_chunk", loss), ("memory.mlp_chunk", mlp)];
        let more = [("schedule.stop", stop), ("memory.micro_batch", "1")];
        train(&place, output, None, &[chunks, more].concat())
    };
    let (whole, _) = go("whole", "4", "64", "64");
    let (first, _) = go("run", "2", "64", "64");
    let (rest, warned) = go("run", "4", "128", "1024");
    assert_eq!([losses(&first), losses(&rest)].concat(), losses(&whole));
    assert_eq!(warned, [""; 0]);
    let (_, warned) = go("run", "6", "16", "1024");
    assert!(
        warned.len() == 1 && warned[0].starts_with("`memory.loss_chunk` was `48`"),
        "{warned:?}"
    );
}

#[test]
fn between_phases_only_what_one_start_would_not_have_done_is_said() {
    let place = Place::new();
    let stages = "{ a: { tokens: 48, steps: 3 }, b: { tokens: 96, steps: 2, reset: [] } }";
    let go = |output: &str, stop: &str, chunk: &str| {
        let keys = [("schedule.stop", stop), ("memory.loss_chunk", chunk)];
        train(&place, output, Some(stages), &keys).1
    };
    // A phase has as many rows as its sequences, and so chunks of its own.
    assert_eq!(go("whole", "5", "1000"), [""; 0]);
    go("same", "3", "1000");
    assert_eq!(go("same", "5", "1000"), [""; 0]);
    go("other", "3", "1000");
    let warned = go("other", "5", "16");
    assert!(warned.len() == 1 && warned[0].starts_with("`memory.loss_chunk` was `"), "{warned:?}");
}
