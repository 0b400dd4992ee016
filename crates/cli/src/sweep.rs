//! `annulus sweep`: trains every run of a file with a `sweep:`, each in a process of its own, and prints their table.
//!
//! It is separate from `train`, whose exit code, signals, `--from` and launchers are about one run.

mod bases;
mod checked;
mod jobs;
pub(crate) mod record;
mod room;
mod stray;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use annulus_experiment::{Override, Sweep, parse_sweep, read_experiment};
use annulus_text::count;
use annulus_train::{Exit, RunSummary, decided_by_checkpoint, is_run, run_summary};
use clap::Args;

use self::bases::Bases;
pub(crate) use self::checked::listed;
use self::checked::{Checked, checked};
use self::jobs::{Jobs, Results};
use self::stray::stray;
use crate::failure::Failure;
use crate::table::{self, TableOptions};
use crate::values::replacement;
use crate::{Done, print, stop};

/// The file that a running sweep locks.
const LOCK: &str = "sweep.lock";

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// An experiment with a `sweep:`
    file: PathBuf,
    /// Keys to replace, as in `data.tokens=64k`; for a key that the sweep varies, its list of values
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    #[command(flatten)]
    options: TableOptions,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let stop = stop::watch()?;
    let Arguments { file, replacements, options } = arguments;
    let name = file.display().to_string();
    let text = read_experiment(file)?;
    let Some(mut sweep) = parse_sweep(&name, &text, replacements)? else {
        let hint = format!(
            "`annulus train {name}` runs it; `experiments/sweep.yaml` is an example of a sweep"
        );
        return Err(Failure::usage(format!("`{name}` has no `sweep:`: it is one run"), hint));
    };
    let bases = record::bases(&sweep.output).settle(&mut sweep);
    let all = checked(&sweep)?;
    let at_once = all.at_once(&sweep)?;
    let folder = Folder::open(&sweep)?;
    let finished = already_finished(&sweep, &all, &bases)?;
    bases.are_needed(&sweep.output)?;
    record::write(&sweep, &bases).map_err(|error| folder.failure(&error))?;
    all.warnings.iter().for_each(print::warn);
    print::say(&begins(&sweep, finished.len(), &at_once.to_string()));
    let left = (0..sweep.runs.len()).filter(|index| !finished.contains(index)).collect();
    let Results { done, failed } = Jobs::new(&sweep, at_once, &stop)?.run(left);
    let done: BTreeSet<usize> = finished.into_iter().chain(done).collect();
    let summary = |index: usize| run_summary(&sweep.runs[index].experiment.output).ok();
    let of_run = |index: usize| done.contains(&index).then(|| summary(index)).flatten();
    let runs: Vec<Option<RunSummary>> = (0..sweep.runs.len()).map(of_run).collect();
    table::print(record::groups(&sweep, runs), *options)?;
    Ok(ended(&sweep, done.len(), &failed))
}

/// The message at the start: how many runs there are, and how they will be run.
fn begins(sweep: &Sweep, finished: usize, at_once: &str) -> String {
    let before = match finished {
        0 => String::new(),
        count => format!(", {count} of them finished before"),
    };
    let folder = sweep.output.display();
    let (name, all) = (&sweep.name, count(sweep.runs.len(), "run"));
    format!("sweep {name}: {all} in `{folder}`{before}; {at_once}")
}

/// Prints which runs failed or are left, and returns the exit code.
fn ended(sweep: &Sweep, done: usize, failed: &[(usize, String)]) -> u8 {
    for (index, why) in failed {
        print::say(&format!("failed: run `{}`: {why}", sweep.runs[*index].name));
    }
    let all = sweep.runs.len();
    if done + failed.len() < all {
        print::say(&format!(
            "stopped with {done} of {all} runs finished; the same command resumes"
        ));
        return Exit::Preempted.code();
    }
    if !failed.is_empty() {
        let count = failed.len();
        print::say(&format!("{count} of {all} runs failed; the same command tries them again"));
        return Exit::RunFailed.code();
    }
    0
}

/// The runs that are finished already. A folder of a different experiment under a run's name is an error.
fn already_finished(
    sweep: &Sweep,
    all: &Checked,
    bases: &Bases,
) -> Result<BTreeSet<usize>, Failure> {
    let mut finished = BTreeSet::new();
    for (index, run) in sweep.runs.iter().enumerate() {
        let folder = &run.experiment.output;
        if !is_run(folder) {
            continue;
        }
        let (there, wanted) = (run_summary(folder)?, all.resolved(run));
        let differing = annulus_experiment::differences(&there.experiment, &wanted);
        // Whether a run can resume with moved files or a changed learning-rate curve depends on its checkpoint.
        let other = differing.iter().find(|one| !decided_by_checkpoint(&one.key));
        let other = other.map(ToString::to_string);
        let is_stray = || stray(&there.experiment, &sweep.keys, &run.values, bases);
        let other = match other.or_else(is_stray) {
            None if !differing.is_empty() => checked::refused(run)?,
            other => other,
        };
        if let Some(other) = other {
            let message = format!("run `{}` already exists, but its {other}", run.name);
            let hint = format!(
                "set it back, set another `name` or `output`, or move `{}` away",
                folder.display()
            );
            return Err(Failure::new(Exit::Checkpoint, message, Some(hint)));
        }
        // `schedule.stop` may change when a run is resumed.
        let reaches = there.experiment.last_step() >= wanted.last_step();
        if there.is_finished && reaches && differing.is_empty() {
            finished.insert(index);
        }
    }
    Ok(finished)
}

/// The sweep's folder, locked until this is dropped.
struct Folder<'a> {
    path: &'a Path,
    lock: Option<File>,
}

impl Folder<'_> {
    fn open(sweep: &Sweep) -> Result<Folder<'_>, Failure> {
        let mut folder = Folder { path: &sweep.output, lock: None };
        if is_run(folder.path) {
            let message = format!("`{}` is the folder of a run", folder.path.display());
            return Err(Failure::usage(message, "set another `output` for the sweep"));
        }
        fs::create_dir_all(folder.path).map_err(|error| folder.failure(&error))?;
        let lock = annulus_files::lock(&folder.path.join(LOCK));
        let lock = lock.map_err(|error| folder.failure(&error))?;
        if lock.try_lock().is_err() {
            let message = format!("another sweep is running in `{}`", folder.path.display());
            let hint = "wait until it ends, or set another `output`".to_owned();
            return Err(Failure::new(Exit::Checkpoint, message, Some(hint)));
        }
        // Removes files that a crash left half-written.
        annulus_files::sweep(folder.path).map_err(|error| folder.failure(&error))?;
        folder.lock = Some(lock);
        Ok(folder)
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        let message = format!("cannot write to `{}`: {error}", self.path.display());
        Failure::new(
            Exit::Internal,
            message,
            Some("set an `output` that can be written".to_owned()),
        )
    }
}
