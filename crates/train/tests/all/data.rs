//! Which files are a run's data, and data that changes while it is trained on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_train::{
    Ending, Notice, RunOptions, Silent, Sink, TrainError, Value, excluded, left_out_of, run,
};

use crate::common::{BASE, Place, losses};

/// A console that cuts a file short after a step.
struct Cutting {
    path: PathBuf,
    step: u64,
}

impl Sink for Cutting {
    fn record(&mut self, step: u64, _values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        if step == self.step {
            fs::OpenOptions::new().write(true).open(&self.path)?.set_len(300)?;
        }
        Ok(())
    }
}

fn with_ending(folder: &Path, ending: &str) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.extension().is_some_and(|own| own == ending)).unwrap()
}

#[test]
fn data_that_changes_ends_a_run_with_its_last_step_saved() {
    let place = Place::new();
    let changes = [
        ("every.log", "1"),
        ("schedule.steps", "8"),
        ("mesh.sequence", "2"),
        ("attention.strategy", "ring"),
    ];
    let right = place.run_in("right", &changes);
    let path = with_ending(&place.path("cache"), "tokens");
    let output = place.path("cut");
    let plan = place.plan(&[&changes[..], &[("output", output.to_str().unwrap())]].concat());
    let mut console = Cutting { path: path.clone(), step: 4 };
    let error = run(&plan, RunOptions::new(BASE, 4), &mut console).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    let changed = format!("`{}` changed while it was read", path.display());
    assert!(error.to_string().ends_with(&changed), "{error}");
    // The same command resumes there, with the cache built anew.
    let rest = run(&plan, RunOptions::new(BASE, 4), &mut Silent).unwrap();
    assert_eq!((rest.ending, rest.resumed_from), (Ending::Finished, Some(4)));
    assert_eq!(losses(&rest), losses(&right)[4..]);
}

#[test]
fn a_run_whose_folder_lies_in_its_data_goes_on() {
    let place = Place::new();
    let data = place.path("");
    let changes = [
        ("data.path", data.to_str().unwrap()),
        ("schedule.steps", "4"),
        ("attention.strategy", "local"),
        ("mesh.sequence", "1"),
    ];
    let stop = [&changes[..], &[("schedule.stop", "2")]].concat();
    assert_eq!(place.run_in("runs/own", &stop).step, 2);
    // Another run beside it, whose experiment also ends in `.yaml`.
    place.run_in("runs/other", &stop);
    let rest = place.run_in("runs/own", &changes);
    assert_eq!((rest.ending, rest.resumed_from), (Ending::Finished, Some(2)));
    let own = place.path("runs/own");
    let plan = place.plan(&[&changes[..], &[("output", own.to_str().unwrap())]].concat());
    let note = left_out_of(&plan.experiment).unwrap().unwrap();
    for name in ["runs/own`", "runs/other`", " left out of the data"] {
        assert!(note.contains(name), "{note}");
    }
}

#[test]
fn sources_of_which_nothing_is_held_out_are_named() {
    let place = Place::new();
    for name in ["rare.txt", "often.txt"] {
        fs::write(place.path(name), "some text").unwrap();
    }
    let [rare, often] = ["rare.txt", "often.txt"].map(|name| place.path(name));
    let path =
        format!("[{{ path: {}, weight: 30 }}, {{ path: {} }}]", often.display(), rare.display());
    let note = |held_out: &str| {
        let plan = place.plan(&[("data.path", &*path), ("data.evaluate", held_out)]);
        left_out_of(&plan.experiment).unwrap()
    };
    let wanted = format!(
        "`{}` never evaluated: the share by weight of the 8 sequences that `data.evaluate` holds out is 0 (raise it)",
        rare.display()
    );
    assert_eq!(note("8"), Some(wanted));
    assert_eq!((note("0"), note("31")), (None, None));
}

#[test]
fn what_a_run_writes_is_refused_and_what_lies_beside_it_is_data() {
    let place = Place::new();
    let output = place.path("");
    for name in ["experiment.yaml", "step-12", "trace-3.json", "evaluation", "step-by-step.txt"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    for (name, refused) in [
        ("experiment.yaml", true),
        ("step-12", true),
        ("trace-3.json", true),
        ("evaluation", true),
        ("step-by-step.txt", false),
        ("text.txt", false),
        (".", false),
    ] {
        let found = excluded(&[place.path(name)], &output);
        assert_eq!(found.is_err(), refused, "{name}");
        if let Err(error) = found {
            assert!(matches!(error, TrainError::Configuration { .. }));
            assert_eq!((error.exit_code(), error.hint().is_some()), (2, true));
        }
    }
}

/// A console that asks to stop as soon as it is told that the run waits for another process.
struct Impatient(Arc<AtomicBool>);

impl Sink for Impatient {
    fn record(&mut self, _step: u64, _values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        Ok(())
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        if let Notice::Warning(text) = notice {
            assert_eq!(*text, "waiting for process 4711, which tokenises the same texts");
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn another_process_that_builds_the_cache_is_named_and_waited_for_until_a_stop() {
    let place = Place::new();
    place.run_in("first", &[("schedule.steps", "1"), ("schedule.warmup", "0")]);
    let cache = with_ending(&place.path("cache"), "tokens");
    fs::remove_file(&cache).unwrap();
    let lock = fs::File::create(cache.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    fs::write(cache.with_extension("lock"), "4711\n").unwrap();
    let output = place.path("second");
    let plan = place.plan(&[("output", output.to_str().unwrap())]);
    let options = RunOptions::new(BASE, 4);
    let mut console = Impatient(options.stop.clone());
    let ended = run(&plan, options, &mut console).unwrap();
    assert_eq!((ended.ending, ended.step), (Ending::Preempted, 0));
}
