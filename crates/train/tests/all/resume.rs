//! Stopping and resuming changes nothing; what is damaged is refused; what differs is refused by key.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{BASE, Place, difference, losses, number, state};
use annulus_comm::{Fault, Faulty, When, World, Wrap};
use annulus_plan::Plan;
use annulus_train::{Ending, Fork, Notice, Outcome, RunOptions, Silent, Sink, Value, run};

const TEN: (&str, &str) = ("schedule.stop", "10");

#[test]
fn ten_and_ten_are_twenty_to_the_bit() {
    let place = Place::new();
    for (name, setting) in [
        ("local", vec![]),
        ("bf16", vec![("model.dtype", "bf16")]),
        ("ring", vec![("mesh.sequence", "3"), ("attention.strategy", "ring")]),
    ] {
        // A run evaluates its last step; so the middle, where one run ends, is evaluated in both.
        let setting = [&setting[..], &[("every.evaluate", "10")]].concat();
        let halves = format!("{name}-halves");
        let whole = place.run_in(&format!("{name}-whole"), &setting);
        let first = place.run_in(&halves, &[&setting[..], &[TEN]].concat());
        assert_eq!(first.step, 10);
        let second = place.run_in(&halves, &setting);
        assert_eq!(second.resumed_from, Some(10));
        let both = [losses(&first), losses(&second)].concat();
        assert_eq!(both, losses(&whole), "{name}");
        assert_eq!(
            state(&second.checkpoint.unwrap()),
            state(whole.checkpoint.as_ref().unwrap()),
            "{name}: weights and moments"
        );
        same_metrics(&second.folder, &whole.folder);
    }
}

fn metrics(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn going_on_with_other_ranks_or_another_strategy_is_the_same_run() {
    let place = Place::new();
    let whole = losses(&place.run_in("whole", &[]));
    for (index, (strategy, ranks)) in
        [("striped", "4"), ("megatron", "2"), ("all-gather", "3")].into_iter().enumerate()
    {
        let name = format!("other-{index}");
        let first = place.run_in(&name, &[TEN]);
        let changes = [
            ("attention.strategy", strategy),
            ("mesh.sequence", ranks),
            ("memory.micro_batch", "2"),
            ("every.log", "2"),
        ];
        let second = place.run_in(&name, &changes);
        let both = [losses(&first), losses(&second)].concat();
        let error = difference(&both, &whole);
        assert!(error < 1e-5, "{strategy} on {ranks}: {error:e}");
    }
}

#[test]
fn layers_that_slide_may_be_split_anew_but_not_slide_anew() {
    let place = Place::new();
    let slide = [("attention.sliding.layers", "[1]"), ("attention.sliding.window", "9")];
    let run = |name: &str, more: &[(&str, &str)]| {
        let output = place.path(name);
        let output = [("output", output.to_str().unwrap())];
        place.run(&[&slide[..], &output, more].concat())
    };
    let whole = losses(&run("whole", &[]).unwrap());
    let first = run("split", &[TEN]).unwrap();
    let open = [("attention.strategy", "auto"), ("mesh.sequence", "3")];
    let second = run("split", &open).unwrap();
    let error = difference(&[losses(&first), losses(&second)].concat(), &whole);
    assert!(error < 1e-5, "{error:e}");
    let settled = fs::read_to_string(second.folder.join("experiment.yaml")).unwrap();
    assert!(!settled.contains("strategy: auto"), "{settled}");
    assert!(settled.contains("  sliding:\n    layers: [1]\n    window: 9\n"), "{settled}");
    for (key, value) in [("attention.sliding.layers", "[0]"), ("attention.sliding.window", "8")] {
        let error = run("split", &[(key, value)]).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().contains(&format!("`{key}`")), "{error}");
    }
}

#[test]
fn a_finished_run_says_so_and_other_experiments_are_refused_by_key() {
    let place = Place::new();
    let [first, again] = [1, 2].map(|_| place.run(&[("schedule.stop", "9")]).unwrap());
    assert_eq!((again.ending, again.step), (Ending::AlreadyFinished, 9));
    assert_eq!(again.last["train/loss"], first.last["train/loss"]);
    assert_eq!(again.checkpoint, first.checkpoint);
    for (key, value, back) in [
        ("seed", "4", "set `seed` back to"),
        ("optimizer.learning_rate", "2e-2", "set `optimizer.learning_rate` back to"),
        ("schedule.steps", "30", "`schedule` may change only"),
        ("data.batch", "2", "set `data.batch` back to `4`"),
        ("attention.window", "5", "remove `attention.window`"),
        ("model.num_hidden_layers", "1", "set `model.num_hidden_layers` back to `2`"),
    ] {
        let error = place.run(&[(key, value)]).unwrap_err();
        assert!(error.exit_code() == 4 && error.hint().unwrap().starts_with(back), "{error:?}");
        assert!(error.to_string().contains(&format!("`{key}`")), "{error}");
    }
    fs::write(place.path("text.txt"), "another text ".repeat(2000)).unwrap();
    let error = place.run(&[]).unwrap_err();
    assert!(error.to_string().contains("was trained on other texts"), "{error}");
}

#[test]
fn a_damaged_checkpoint_is_refused_by_file_and_the_one_before_is_used() {
    let place = Place::new();
    let damages: [(&str, fn(&Path)); 5] = [
        ("model.safetensors", flip),
        ("optimizer.safetensors", truncate),
        ("state.json", |path| fs::remove_file(path).unwrap()),
        ("hashes.json", flip),
        ("config.json", |path| fs::write(path, "{}").unwrap()),
    ];
    let whole = place.run_in("whole", &[("schedule.stop", "8")]);
    for (index, (file, damage)) in damages.into_iter().enumerate() {
        let name = format!("damaged-{index}");
        let until = |stop| [("schedule.stop", stop), ("every.checkpoint", "2")];
        let first = place.run_in(&name, &until("6"));
        assert_eq!(steps(&first.folder), [4, 6], "the last two are kept");
        damage(&first.folder.join("step-6").join(file));
        let second = place.run_in(&name, &until("8"));
        assert_eq!(second.resumed_from, Some(4), "{file}");
        assert!(second.warnings[0].contains(file), "{:?}", second.warnings);
        assert_eq!(state(&second.checkpoint.unwrap()), state(whole.checkpoint.as_ref().unwrap()));
    }
}

/// What is known to be damaged is not counted, and no good one is deleted for it.
#[test]
fn a_damaged_checkpoint_takes_no_place_of_a_good_one() {
    let place = Place::new();
    let until = |stop| [("schedule.stop", stop), ("every.checkpoint", "2")];
    let first = place.run_in("run", &until("6"));
    flip(&first.folder.join("step-6/model.safetensors"));
    let second = place.run_in("run", &[("schedule.stop", "7"), ("every.checkpoint", "7")]);
    assert_eq!(second.resumed_from, Some(4));
    assert_eq!(steps(&second.folder), [4, 6, 7]);
    // Replaced by a good one, it counts again.
    flip(&second.folder.join("step-7/model.safetensors"));
    let third = place.run_in("run", &until("8"));
    assert_eq!((third.resumed_from, steps(&third.folder)), (Some(4), vec![6, 7, 8]));
}

/// A model's folder with a config.json that may be edited.
#[test]
fn a_model_that_was_edited_in_place_is_refused_and_one_that_was_moved_is_not() {
    let place = Place::new();
    let base = place.run_in("base", &[("schedule.stop", "1")]).checkpoint.unwrap();
    let copy = |name: &str| {
        let folder = place.path(name);
        fs::create_dir(&folder).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(base.join(file), folder.join(file)).unwrap();
        }
        folder
    };
    let [own, moved] = ["own", "moved"].map(copy);
    for (name, lora) in [("whole", None), ("adapters", Some(("lora", "{ rank: 2 }")))] {
        let output = place.path(name);
        let plan = |model: &Path, stop: &str, output: &Path| {
            let model = format!("{{ path: {} }}", model.display());
            let changes = [
                ("model", model.as_str()),
                ("schedule.stop", stop),
                ("output", output.to_str().unwrap()),
            ];
            let changes: Vec<_> = changes.into_iter().chain(lora).collect();
            place.plan(&changes)
        };
        let train = |plan: &Plan, options| run(plan, options, &mut Silent);
        let fresh = || RunOptions::new(BASE, 4);
        train(&plan(&own, "2", &output), fresh()).unwrap();
        let text = fs::read_to_string(own.join("config.json")).unwrap();
        let edited = text.replace("\"rms_norm_eps\": 0.00001", "\"rms_norm_eps\": 0.5");
        assert_ne!(text, edited);
        fs::write(own.join("config.json"), edited).unwrap();
        let said = "`rms_norm_eps` was `0.00001` and is `0.5`";
        let error = train(&plan(&own, "3", &output), fresh()).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains(said), "{name}: {error}");
        assert!(error.hint().unwrap().starts_with("restore the model, or"), "{name}: {error:?}");
        let fork = Some(Fork { from: output.clone(), fresh_optimizer: false });
        let options = RunOptions { fork, ..fresh() };
        let error = train(&plan(&own, "3", &place.path("fork")), options).unwrap_err();
        assert!(error.exit_code() == 4 && error.to_string().contains(said), "{name}: {error}");
        let outcome = train(&plan(&moved, "3", &output), fresh()).unwrap();
        assert_eq!(outcome.resumed_from, Some(2), "{name}");
        fs::write(own.join("config.json"), text).unwrap();
    }
}

#[test]
fn where_nothing_is_whole_nothing_is_started_anew() {
    let place = Place::new();
    let first = place.run(&[("schedule.stop", "2")]).unwrap();
    flip(&first.folder.join("step-2/model.safetensors"));
    let error = place.run(&[]).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    assert!(error.hint().is_some());
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
}

fn steps(folder: &Path) -> Vec<u64> {
    let mut steps: Vec<u64> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse().ok()
        })
        .collect();
    steps.sort_unstable();
    steps
}

/// A console that stops the run at a notice or a step.
struct Stopper {
    stop: Arc<AtomicBool>,
    at: fn(u64, bool) -> bool,
}

impl Sink for Stopper {
    fn record(&mut self, step: u64, _values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        if (self.at)(step, false) {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        if let Notice::Evaluating { .. } = notice
            && (self.at)(0, true)
        {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_run_stopped_anywhere_goes_on_as_if_it_had_not_been() {
    let place = Place::new();
    let setting = [
        ("mesh.sequence", "2"),
        ("attention.strategy", "striped"),
        ("every.evaluate", "4"),
        ("every.evaluate_on_start", "true"),
        ("every.checkpoint", "3"),
    ];
    let whole = place.run_in("whole", &setting);
    assert!(metrics(&whole.folder)[0].starts_with("{\"step\": 0, \"evaluate/loss\": "));
    let plan = place.plan(&setting);
    let stops: [fn(u64, bool) -> bool; 3] =
        [|step, _| step == 5, |_, evaluating| evaluating, |step, _| step > 0];
    for (index, at) in stops.into_iter().enumerate() {
        let mut plan = plan.clone();
        plan.experiment.output = place.path(&format!("stopped-{index}"));
        let mut attempts = 0;
        let last = loop {
            let stop = Arc::new(AtomicBool::new(false));
            let options = RunOptions { stop: stop.clone(), ..RunOptions::new(BASE, 2) };
            // From the sixth attempt on, nothing stops the run.
            let at = if attempts < 5 { at } else { |_, _| false };
            let outcome = run(&plan, options, &mut Stopper { stop, at }).unwrap();
            if outcome.ending == Ending::Finished {
                break outcome;
            }
            assert_eq!(outcome.ending, Ending::Preempted);
            let saved = outcome.checkpoint.clone().map(|path| path.display().to_string());
            if outcome.step > 0 {
                assert!(saved.unwrap().ends_with(&format!("step-{}", outcome.step)));
            }
            attempts += 1;
        };
        assert_eq!(state(&last.checkpoint.unwrap()), state(whole.checkpoint.as_ref().unwrap()));
        same_metrics(&last.folder, &whole.folder);
    }
}

/// Checks that no step is missing or there twice, and that computed values are the same to the bit.
fn same_metrics(folder: &Path, other: &Path) {
    let (lines, wanted) = (metrics(folder), metrics(other));
    assert_eq!(lines.len(), wanted.len());
    for (line, wanted) in lines.iter().zip(&wanted) {
        for tag in ["step", "train/loss", "train/grad_norm", "evaluate/loss"] {
            assert_eq!(line.contains(tag), wanted.contains(tag), "{line}");
            if line.contains(tag) {
                assert_eq!(number(line, tag).to_bits(), number(wanted, tag).to_bits(), "{tag}");
            }
        }
    }
}

#[test]
fn a_stop_at_any_moment_ends_in_time_and_loses_nothing() {
    let place = Place::new();
    for setting in [
        vec![("mesh.sequence", "3"), ("attention.strategy", "ring"), ("every.checkpoint", "2")],
        vec![("every.evaluate", "1")],
    ] {
        let name = format!("{}", setting.len());
        let whole = place.run_in(&format!("whole-{name}"), &setting);
        let mut plan = place.plan(&setting);
        plan.experiment.output = place.path(&format!("stopped-{name}"));
        let mut preempted = 0;
        for moment in 0..12 {
            let after = Duration::from_millis(3 + 17 * moment % 60);
            let outcome = stopped_after(&plan, RunOptions::new(BASE, 3), after);
            preempted += u32::from(outcome.ending == Ending::Preempted);
            assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
        }
        assert!(preempted > 0, "no stop came in time: the test shows nothing");
        let last = run(&plan, RunOptions::new(BASE, 3), &mut Silent).unwrap();
        assert_ne!(last.ending, Ending::Preempted);
        same_metrics(&last.folder, &whole.folder);
        let again = run(&plan, RunOptions::new(BASE, 3), &mut Silent).unwrap();
        assert_eq!(again.ending, Ending::AlreadyFinished);
        assert_eq!(state(&last.checkpoint.unwrap()), state(whole.checkpoint.as_ref().unwrap()));
    }
}

/// Runs `plan` and asks it to stop `after` its start; it must end within five seconds.
fn stopped_after(plan: &Plan, options: RunOptions, after: Duration) -> Outcome {
    let stop = options.stop.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(after);
        stop.store(true, Ordering::Relaxed);
        Instant::now()
    });
    let outcome = run(plan, options, &mut Silent).unwrap();
    let ended = Instant::now();
    let stopped = stopper.join().unwrap();
    assert!(ended.saturating_duration_since(stopped) < Duration::from_secs(15));
    outcome
}

#[test]
fn a_stop_while_ranks_tell_their_costs_loses_no_line() {
    let place = Place::new();
    let setting = [("mesh.sequence", "2"), ("attention.strategy", "ring")];
    let whole = place.run_in("whole", &setting);
    let mut plan = place.plan(&setting);
    plan.experiment.output = place.path("stopped");
    let mut options = RunOptions::new(BASE, 3);
    let (when, late) =
        (When { rank: 1, pass: "measure", ..When::default() }, Duration::from_secs(4));
    let wrap: Wrap = Arc::new(move |comm| Faulty::new(comm, when, Fault::Delay(late)));
    options.world = World::alone().wrapped(wrap);
    let outcome = stopped_after(&plan, options, late / 2);
    let lines = metrics(&outcome.folder);
    assert!(!lines.last().unwrap().contains("comm/bytes"), "the stop came at another time");
    assert_eq!(lines.len() as u64, outcome.step);
    let last = run(&plan, RunOptions::new(BASE, 3), &mut Silent).unwrap();
    same_metrics(&last.folder, &whole.folder);
}
