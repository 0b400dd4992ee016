//! Phases: a run is the same whether it is cut or not; a phase begins anew what it should, and nothing else.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{BASE, Place, losses, number, state};
use annulus_comm::World;
use annulus_experiment::{Override, parse};
use annulus_plan::Plan;
use annulus_train::{
    Checkpoint, Ending, Notice, Opened, Outcome, RunOptions, Silent, Sink, TrainError, Value, bits,
    measure, resolve, run_phases,
};

/// The tiny experiment without the keys that its phases set: lengths and steps.
fn yaml() -> String {
    BASE.replace("  tokens: 48\n", "").replace("  steps: 20\n", "")
}

/// Phases of other lengths and batches: each reads the text from where the one before ended.
const LONGER: &str = "{
  short: { tokens: 48, steps: 8 },
  middle: { tokens: 70, steps: 5, batch: 2, learning_rate: 2e-3, reset: [schedule] },
  long: { tokens: 144, steps: 4, batch: 1, extend: { rope: yarn, tokens: 144 }, reset: [moments] }}";

fn staged(place: &Place, output: &str, stages: &str, changes: &[(&str, &str)]) -> Vec<Plan> {
    let (text, output) = (place.path("text.txt"), place.path(output));
    let given = [
        ("data.path", text.to_str().unwrap()),
        ("output", output.to_str().unwrap()),
        ("stages", stages),
    ];
    let overrides = given.iter().chain(changes).map(|&(key, value)| {
        let (key, value) = (key.to_owned(), value.to_owned());
        Override { key, value }
    });
    let overrides: Vec<Override> = overrides.collect();
    let experiment = parse("tiny.yaml", &yaml(), &overrides).unwrap_or_else(|e| panic!("{e}"));
    let opened = resolve(experiment, &mut |_, _, _| unreachable!("no model of the hub"));
    opened.and_then(|opened: Opened| opened.plans(4)).unwrap_or_else(|e: TrainError| panic!("{e}"))
}

fn trained(plans: &[Plan]) -> Result<Outcome, TrainError> {
    run_phases(plans, RunOptions::new(yaml(), 4), &mut Silent)
}

fn rates(folder: &Path) -> Vec<f64> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| number(line, "train/lr")).collect()
}

#[test]
fn stages_alike_of_which_nothing_begins_anew_are_one_run() {
    let place = Place::new();
    let whole = place.run_in("whole", &[]);
    let thirds = "{ a: { tokens: 48, steps: 7 }, b: { tokens: 48, steps: 6, reset: [] },
        c: { tokens: 48, steps: 7, reset: [] } }";
    let parts = trained(&staged(&place, "parts", thirds, &[])).unwrap();
    assert_eq!((parts.ending, parts.step), (Ending::Finished, 20));
    assert_eq!(losses(&parts), losses(&whole));
    assert_eq!(rates(&parts.folder), rates(&whole.folder));
    assert_eq!(state(&parts.checkpoint.unwrap()), state(&whole.checkpoint.unwrap()));
}

/// Phases in which everything begins anew equal several runs by hand, each from the weights of the one before.
#[test]
fn stages_in_which_all_begins_anew_are_runs_by_hand() {
    let place = Place::new();
    let first = place.run_in("first", &[("schedule.steps", "6"), ("data.evaluate", "0")]);
    let model = format!("{{ path: {} }}", first.checkpoint.as_ref().unwrap().display());
    let output = place.path("second");
    let books = place.path("text.txt");
    let changes = [
        ("data.path", books.to_str().unwrap()),
        ("output", output.to_str().unwrap()),
        ("model", &*model),
        ("data.tokens", "96"),
        ("data.evaluate", "0"),
        ("extend", "{ rope: linear, tokens: 96 }"),
        ("schedule.steps", "5"),
    ];
    let second = annulus_train::run(
        &crate::common::plan(BASE, &changes),
        RunOptions::new(BASE, 4),
        &mut Silent,
    )
    .unwrap();
    let stages = "{ a: { tokens: 48, steps: 6 }, b: { tokens: 96, steps: 5,
        extend: { rope: linear, tokens: 96 }, reset: [moments, schedule, data] } }";
    let changes = [("data.evaluate", "0"), ("model.max_position_embeddings", "48")];
    let both = trained(&staged(&place, "both", stages, &changes)).unwrap();
    assert_eq!(losses(&both), [losses(&first), losses(&second)].concat());
    assert_eq!(state(&both.checkpoint.unwrap()), state(&second.checkpoint.unwrap()));
}

/// What is measured of a later phase begins with it, although nothing was trained before.
#[test]
fn a_later_phase_is_stepped_through_and_measured_by_itself() {
    let place = Place::new();
    let changes = [
        ("mesh.sequence", "2"),
        ("attention.strategy", "ring"),
        ("model.max_position_embeddings", "72"),
    ];
    let plans = staged(&place, "none", LONGER, &changes);
    let last = plans.last().unwrap();
    let found = bits(last, 2, 2, &World::alone()).unwrap().expect("rank 0");
    let finite = |loss: &u64| f64::from_bits(*loss).is_finite();
    assert!(found.losses.len() == 2 && found.losses.iter().all(finite), "{found:?}");
    assert_eq!(measure(last, 1, 2).unwrap().len(), 2);
}

#[test]
fn what_begins_anew_is_told_from_what_does_not() {
    let place = Place::new();
    let after = |reset: &str| {
        let stages = format!(
            "{{ a: {{ tokens: 48, steps: 6 }}, b: {{ tokens: 48, steps: 4, reset: {reset} }} }}"
        );
        let changes = [("schedule.decay", "constant"), ("data.evaluate", "0")];
        let outcome = trained(&staged(&place, reset, &stages, &changes)).unwrap();
        let rate = rates(&outcome.folder)[6];
        let seen = losses(&outcome);
        (rate, seen[6].to_bits(), seen[7].to_bits())
    };
    let (rate, first, second) = after("[]");
    let (anew, same, other) = after("[schedule]");
    assert_eq!([rate, anew].map(f64::to_bits), [1e-2, 5e-3].map(f64::to_bits), "warm-up, again");
    assert_eq!(first, same, "a rate shows a step later");
    assert_ne!(second, other);
    let (unmoved, same, other) = after("[moments]");
    assert_eq!((rate.to_bits(), first), (unmoved.to_bits(), same), "moments show a step later");
    assert_ne!(second, other);
    let (unmoved, other, _) = after("[data]");
    assert_eq!(rate.to_bits(), unmoved.to_bits());
    assert_ne!(first, other, "the first batch again");
}

#[test]
fn a_run_goes_on_in_any_stage_to_the_bit() {
    let place = Place::new();
    let model = ("model.max_position_embeddings", "48");
    let whole = trained(&staged(&place, "whole", LONGER, &[model])).unwrap();
    assert_eq!(whole.step, 17);
    let at = Checkpoint::open(whole.checkpoint.as_ref().unwrap()).unwrap();
    assert_eq!(at.experiment().data.tokens, 144);
    // Within each phase, and between phases.
    for stop in ["3", "8", "10", "13", "15"] {
        let stopping = [model, ("schedule.stop", stop)];
        let first = trained(&staged(&place, stop, LONGER, &stopping)).unwrap();
        assert_eq!(first.step.to_string(), stop);
        let second = trained(&staged(&place, stop, LONGER, &[model])).unwrap();
        assert_eq!(second.resumed_from, Some(first.step));
        assert_eq!([losses(&first), losses(&second)].concat(), losses(&whole), "after {stop}");
        let both = [&second, &whole].map(|outcome| state(outcome.checkpoint.as_ref().unwrap()));
        assert_eq!(both[0], both[1], "after {stop}");
        let again = trained(&staged(&place, stop, LONGER, &[model])).unwrap();
        assert_eq!((again.ending, again.losses.len()), (Ending::AlreadyFinished, 0));
    }
}

#[test]
fn ranks_and_strategy_may_change_between_stages() {
    let place = Place::new();
    let model = ("model.max_position_embeddings", "48");
    let whole = trained(&staged(&place, "whole", LONGER, &[model])).unwrap();
    let first =
        trained(&staged(&place, "other", LONGER, &[model, ("schedule.stop", "8")])).unwrap();
    let split = [model, ("mesh.sequence", "3"), ("attention.strategy", "striped")];
    let second = trained(&staged(&place, "other", LONGER, &split)).unwrap();
    let both = [losses(&first), losses(&second)].concat();
    assert!(crate::common::difference(&both, &losses(&whole)) < 1e-5);
}

#[test]
fn stages_that_differ_are_refused_by_their_key() {
    let place = Place::new();
    let model = ("model.max_position_embeddings", "48");
    trained(&staged(&place, "run", LONGER, &[model, ("schedule.stop", "3")])).unwrap();
    let other = LONGER.replace("steps: 5", "steps: 6");
    let error = trained(&staged(&place, "run", &other, &[model])).unwrap_err().to_string();
    assert!(error.contains("`stages.middle.steps` was `5` and is `6`"), "{error}");
    // Other data is refused even if only a later phase would read it.
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    fs::write(place.path("text.txt"), text + "more\n").unwrap();
    let error = trained(&staged(&place, "run", LONGER, &[model])).unwrap_err().to_string();
    assert!(error.contains("was trained on other texts"), "{error}");
}

#[test]
fn a_later_stage_that_cannot_be_is_refused_before_the_first_step() {
    let place = Place::new();
    fs::write(place.path("text.txt"), "a text of some words\n".repeat(40)).unwrap();
    let stages = "{ a: { tokens: 48, steps: 6 }, b: { tokens: 4000, steps: 5, reset: [] } }";
    let plans = staged(&place, "run", stages, &[("data.evaluate", "0")]);
    let error = trained(&plans).unwrap_err().to_string();
    assert!(error.contains("4001"), "{error}");
    assert!(!place.path("run").join("metrics.jsonl").exists());
}

#[test]
fn stages_in_another_order_are_other_stages() {
    let place = Place::new();
    let [a, b, c] = [
        "a: { tokens: 48, steps: 3 }",
        "b: { tokens: 48, steps: 3, learning_rate: 1e-3, reset: [] }",
        "c: { tokens: 48, steps: 3, learning_rate: 1e-4, reset: [] }",
    ];
    let stages = |list: [&str; 3]| format!("{{ {} }}", list.join(", "));
    let stop = [("schedule.stop", "2")];
    trained(&staged(&place, "run", &stages([a, b, c]), &stop)).unwrap();
    let error = trained(&staged(&place, "run", &stages([a, c, b]), &[])).unwrap_err().to_string();
    assert!(error.contains("`stages` was `[a, b, c]` and is `[a, c, b]`"), "{error}");
}

/// A console that asks to stop as soon as there is a checkpoint.
struct Stopping(Arc<AtomicBool>);

impl Sink for Stopping {
    fn record(&mut self, _step: u64, _values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        Ok(())
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        if let Notice::Saved { .. } = notice {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_run_that_is_stopped_between_stages_is_not_finished() {
    let place = Place::new();
    let plans = staged(&place, "run", LONGER, &[("model.max_position_embeddings", "48")]);
    let options = RunOptions::new(yaml(), 4);
    let mut console = Stopping(options.stop.clone());
    let stopped = run_phases(&plans, options, &mut console).unwrap();
    assert_eq!((stopped.ending, stopped.step), (Ending::Preempted, 8));
    assert!(stopped.checkpoint.unwrap().ends_with("step-8"));
    let rest = trained(&plans).unwrap();
    assert_eq!((rest.ending, rest.resumed_from, rest.step), (Ending::Finished, Some(8), 17));
}

#[test]
fn what_is_finished_does_not_ask_for_its_data() {
    let place = Place::new();
    let plans = staged(&place, "run", LONGER, &[("model.max_position_embeddings", "48")]);
    trained(&plans).unwrap();
    fs::remove_file(place.path("text.txt")).unwrap();
    assert_eq!(trained(&plans).unwrap().ending, Ending::AlreadyFinished);
}

#[test]
fn what_is_left_open_is_chosen_once_for_all_stages() {
    let place = Place::new();
    let stages = "{ a: { tokens: 512, steps: 1 }, b: { tokens: 8, steps: 1, reset: [] } }";
    let open = [("attention.strategy", "auto"), ("mesh.sequence", "4"), ("data.evaluate", "0")];
    let plans = staged(&place, "run", stages, &open);
    assert_eq!(plans[0].groups[0].strategy, plans[1].groups[0].strategy);
    assert!(plans.iter().all(|plan| plan.choice.is_some()));
    assert_eq!(trained(&plans).unwrap().step, 2);
}
