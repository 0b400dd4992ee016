//! `annulus replay`: computes one step of a run again, writes its tensors, and compares them with the hashes that the run wrote.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::World;
use annulus_experiment::Override;
use annulus_files::{PendingFolder, PidLock};
use annulus_train::{
    Dump, Exit, Nearest, Notice, Replayed, RunOptions, Sink, Value, hashed, nearest, replayed,
};
use clap::Args;
use serde_json::json;

use crate::again::{
    DIFFER, OriginalRun, because, beside, changed, computed, is_over, refuse_before, refuse_output,
    refuse_used,
};
use crate::console::Console;
use crate::experiment_file::replaced;
use crate::failure::Failure;
use crate::processes::JobError;
use crate::reproduce::value;
use crate::train::{Job, Train};
use crate::values::{at_least_one, replacement};
use crate::{Done, bisect, judged, print};

/// The file that a running replay keeps locked in its folder.
const LOCK: &str = "replay.lock";

#[derive(Args, Debug)]
pub(crate) struct Replay {
    /// The folder of a run
    run: PathBuf,
    /// The step, from 1
    #[arg(long, value_parser = at_least_one::<u64>)]
    step: u64,
    /// Keys to replace, as in `data.path=moved`; a warning names those that change what is computed
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    /// The folder of the tensors, not inside RUN [default: RUN-replayed-STEP]
    #[arg(long, alias = "output")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The run that is computed again, and the folders that are written.
struct Ready {
    original: OriginalRun,
    train: Train,
    scratch: Scratch,
    output: PathBuf,
    from: Nearest,
    /// Replaced keys that change what is computed, each as a sentence.
    changed: Vec<String>,
}

pub(crate) fn run(arguments: &Replay) -> Done {
    let ready = || arguments.ready();
    let lead = |ready: &Ready, stop, world: &World| arguments.lead(ready, stop, world);
    let dump = arguments.dump(Path::new(""));
    let more = |options| RunOptions { dump: Some(dump.clone()), ..options };
    computed(&arguments.run, ready, lead, &more)
}

impl Replay {
    fn dump(&self, folder: &Path) -> Dump {
        Dump { step: self.step, folder: folder.to_owned() }
    }

    /// An error if the run has no such step.
    fn refuse_no_step(&self, original: &OriginalRun) -> Result<(), Failure> {
        let (step, last) = (self.step, original.logged.experiment.all_steps());
        if step > last {
            let message = format!("`{}` has {last} steps, no step {step}", self.run.display());
            return Err(Failure::usage(message, format!("give a `--step` from 1 to {last}")));
        }
        refuse_before(&self.run, &original.again.manifest, step)
    }

    fn ready(&self) -> Result<Ready, Failure> {
        let original = OriginalRun::read(&self.run, Some(self.step))?;
        // Damaged hashes are reported before the step is computed, not after it.
        hashed(&self.run)?;
        self.refuse_no_step(&original)?;
        refuse_output(&self.replacements)?;
        let changed = changed(&original.logged, &self.replacements)?;
        for key in &changed {
            print::warn(format!("{key}: {DIFFER}"));
        }
        let step = self.step;
        let output = beside(&self.run, self.out.as_deref(), &format!("replayed-{step}"))?;
        refuse_used(&output, |_| false)?;
        let failed = |error| {
            let message = format!("cannot write `{}`: {error}", output.display());
            Failure::usage(message, "give an `--out` that can be written")
        };
        fs::create_dir_all(&output).map_err(failed)?;
        let scratch = Scratch::beside(&output).map_err(failed)?;
        let from = nearest(&self.run, step, scratch.path())?;
        from.warnings.iter().for_each(print::warn);
        let keys = [&self.replacements[..], &only(step)].concat();
        let train = original.train(scratch.path(), &keys, from.step.is_none())?;
        Ok(Ready { original, train, scratch, output, from, changed })
    }

    fn lead(&self, ready: &Ready, stop: Arc<AtomicBool>, world: &World) -> Result<u8, JobError> {
        let Ready { original, train, scratch, output, from, changed } = ready;
        let job = Job { arguments: train, stop, world };
        let (rerun, dump) = (original.again.clone(), self.dump(output));
        let more = |options| RunOptions {
            rerun: Some(rerun.clone()),
            dump: Some(dump.clone()),
            ..options
        };
        let (_, outcome) = job.steps(&more, || Unsaved(Console::default()))?;
        if !is_over(outcome.ending, outcome.step, "starts again") {
            return Ok(Exit::Preempted.code());
        }
        let found = replayed(&self.run, scratch.path(), self.step, output)?;
        let mut reasons = original.reasons(scratch.path())?;
        reasons.extend(changed.iter().cloned());
        let differs = found.first.is_some() || found.value.is_some();
        let is_compared = found.hashed || found.logged;
        let value = || json!({"equal": is_compared.then_some(!differs), "from": from.step, "output": output, "reasons": reasons, "found": found});
        print::either(self.json, value, || self.text(&found, from.step, output, &reasons))?;
        Ok(judged(!differs))
    }

    fn text(
        &self,
        found: &Replayed,
        from: Option<u64>,
        output: &Path,
        reasons: &[String],
    ) -> String {
        let from = from.map_or_else(|| "the start".to_owned(), |from| format!("step-{from}"));
        let Replayed { step, tensors, hashed, first, logged, value: unlike } = found;
        let mut lines = vec![
            format!("step {step} computed again, from {from} on"),
            format!("{tensors} tensors in {}", output.display()),
        ];
        lines.push(match (first, hashed) {
            (Some(first), _) => {
                let rows = bisect::rows(&first.kinds);
                format!("hashes differ from those that the run wrote:\n{}", rows.trim_end())
            }
            (None, true) => {
                format!("equal to the bit: all {tensors} have the hashes that the run wrote")
            }
            (None, false) => {
                let run = self.run.display();
                format!("`{run}` has no hashes of this step to compare with (`every.hash`)")
            }
        });
        lines.extend(unlike.as_ref().map(value));
        if *logged && unlike.is_none() {
            lines.push("loss and gradient norm as the run logged them".to_owned());
        }
        lines.join("\n") + &because(reasons)
    }
}

/// The folder of the new run up to the step, removed when it is dropped, and a lock that says that it is in use.
struct Scratch {
    folder: PendingFolder,
    _lock: PidLock,
}

impl Scratch {
    /// Makes one beside `output`, where the token caches are, and removes those there that nobody uses: replays that were killed left them.
    fn beside(output: &Path) -> io::Result<Scratch> {
        let scratch = Scratch::locked(output)?;
        let there = scratch.path().parent().unwrap_or(Path::new("."));
        // A folder that cannot be listed keeps what is in it.
        for left in annulus_files::leftovers(there).unwrap_or_default() {
            let lock = left.join(LOCK);
            // Other commands have unfinished folders without this lock; locking would create it.
            if lock.is_file() && PidLock::try_lock(&lock).is_ok_and(|lock| lock.is_some()) {
                // With this folder it goes at the latest, also if this process is killed meanwhile. If it stays, it is in nobody's way.
                let going = scratch.path().join(left.file_name().unwrap_or_default());
                let _ = fs::rename(left, &going).and_then(|()| fs::remove_dir_all(going));
            }
        }
        Ok(scratch)
    }

    /// A folder with its lock. Before it is locked, another replay may take it for one that was left, and remove it.
    fn locked(output: &Path) -> io::Result<Scratch> {
        loop {
            let folder = PendingFolder::create(output)?;
            match PidLock::try_lock(&folder.path().join(LOCK)) {
                Ok(Some(lock)) if folder.path().is_dir() => {
                    return Ok(Scratch { folder, _lock: lock });
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The keys that end a run after a step, and leave out whatever it does not need.
fn only(step: u64) -> [Override; 9] {
    let step = step.to_string();
    [
        ("schedule.stop", step.as_str()),
        ("every.hash", "0"),
        ("every.evaluate", "0"),
        ("every.evaluate_on_start", "false"),
        ("keep_best", "false"),
        ("every.checkpoint", "0"),
        ("every.log", step.as_str()),
        ("trace.steps", "[]"),
        ("background_saves", "false"),
    ]
    .map(|(key, value)| replaced(key, value))
}

/// A console that does not report checkpoints, because they are in a folder that is removed.
struct Unsaved(Console);

impl Sink for Unsaved {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        self.0.record(step, values)
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        if !matches!(notice, Notice::Saved { .. }) {
            self.0.notice(notice);
        }
    }
}
