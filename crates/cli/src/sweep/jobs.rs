//! Runs of a sweep as processes: `annulus train` with a file of its own each, so that what ends one ends no other.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use annulus_experiment::{Sweep, SweptRun};
use annulus_plan::duration;
use annulus_train::{Exit, came_to, holder};

use super::room::{AtOnce, keep_to};
use crate::failure::{Failure, PREEMPTED, USAGE};
use crate::{launch, print};

/// How often a process is looked at.
const GLANCE: Duration = Duration::from_millis(20);
/// The end of a log that is searched for what went wrong, bytes.
const END_OF_LOG: u64 = 1 << 16;
/// What a message of a failure begins with.
const ERROR: &str = "error: ";

/// What became of the runs that were left to do.
pub(super) struct Left {
    /// Those that are finished now.
    pub(super) done: Vec<usize>,
    /// Those that failed, in order, each with why.
    pub(super) failed: Vec<(usize, String)>,
}

/// What runs a sweep's runs.
pub(super) struct Jobs<'a> {
    sweep: &'a Sweep,
    at_once: AtOnce,
    stop: &'a AtomicBool,
    program: OsString,
    /// Those that nobody has begun.
    queue: Mutex<VecDeque<usize>>,
    left: Mutex<Left>,
}

/// How a run ended.
enum End {
    Finished(Duration),
    /// Because the sweep is to stop, or somebody stopped it; it goes on the next time.
    Stopped,
    Failed(String),
}

impl<'a> Jobs<'a> {
    pub(super) fn new(
        sweep: &'a Sweep,
        at_once: AtOnce,
        stop: &'a AtomicBool,
    ) -> Result<Self, Failure> {
        let program = env::current_exe().map_err(|error| {
            Failure::new(USAGE, format!("cannot find this program: {error}"), None)
        })?;
        let left = Mutex::new(Left { done: Vec::new(), failed: Vec::new() });
        Ok(Jobs { sweep, at_once, stop, program: program.into(), queue: Mutex::default(), left })
    }

    /// Runs these, as many at the same time as may be, until all have ended or the sweep is to stop.
    pub(super) fn run(self, runs: Vec<usize>) -> Left {
        *held(&self.queue) = runs.into();
        thread::scope(|scope| {
            for slot in 0..self.at_once.runs {
                let jobs = &self;
                // A process ends when the thread that started it does: each has one until all are done.
                scope.spawn(move || {
                    keep_to(slot, jobs.at_once);
                    jobs.work();
                });
            }
        });
        let mut left = self.left.into_inner().unwrap_or_else(PoisonError::into_inner);
        left.failed.sort();
        left
    }

    /// One run after another.
    fn work(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(index) = held(&self.queue).pop_front() else { break };
            let run = &self.sweep.runs[index];
            let end = self.one(run).unwrap_or_else(|error| End::Failed(error.to_string()));
            self.say(index, &end);
            let mut left = held(&self.left);
            match end {
                End::Finished(_) => left.done.push(index),
                End::Failed(why) => left.failed.push((index, why)),
                End::Stopped => {}
            }
        }
    }

    fn say(&self, index: usize, end: &End) {
        let (run, all) = (&self.sweep.runs[index], self.sweep.runs.len());
        let what = match end {
            End::Finished(took) => {
                let loss = came_to(&run.experiment.output).ok().and_then(|run| run.train_loss);
                let loss = loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
                format!("finished after {}{loss}", duration(took.as_secs_f64()))
            }
            End::Stopped => "stopped".to_owned(),
            End::Failed(why) => format!("failed: {why}"),
        };
        print::say(&format!("[{}/{all}] {}: {what}", index + 1, run.name));
    }

    /// Trains one run to its end.
    fn one(&self, run: &SweptRun) -> io::Result<End> {
        if !self.is_free(run) {
            return Ok(End::Stopped);
        }
        let [file, log] = beside(&run.experiment.output);
        annulus_files::write(&file, run.experiment.to_yaml().as_bytes())?;
        let talk = annulus_files::append(&log)?;
        let before = talk.metadata()?.len();
        let began = Instant::now();
        let mut command = Command::new(&self.program);
        command.arg("train").arg(&file).stdin(Stdio::null());
        command.stdout(talk.try_clone()?).stderr(talk);
        let code = self.waited(&mut command)?;
        if code == 0 {
            return Ok(End::Finished(began.elapsed()));
        }
        if code == PREEMPTED || self.stop.load(Ordering::Relaxed) {
            return Ok(End::Stopped);
        }
        let exit = Exit::ALL.into_iter().find(|exit| exit.code() == code);
        let about = exit.map_or("a signal ended it", Exit::about);
        let said = last_error(&log, before).unwrap_or_default();
        Ok(End::Failed(format!("exit code {code}, {about}{said}; its log is `{}`", log.display())))
    }

    /// Starts a process and waits for its end; told to stop, it saves first.
    fn waited(&self, command: &mut Command) -> io::Result<u8> {
        let mut child = launch::start(command)?;
        let mut is_told = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(launch::code(status));
            }
            if !is_told && self.stop.load(Ordering::Relaxed) {
                is_told = true;
                // SAFETY: a signal to a child of ours that was not waited for.
                unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            }
            thread::sleep(GLANCE);
        }
    }

    /// Waits for the process of a sweep that was killed, which may still be saving; false: the sweep is to stop.
    fn is_free(&self, run: &SweptRun) -> bool {
        let mut said = false;
        while let Some(process) = holder(&run.experiment.output) {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if !said {
                print::say(&format!(
                    "{}: waiting for process {process}, which is writing to it",
                    run.name
                ));
                said = true;
            }
            thread::sleep(GLANCE);
        }
        true
    }
}

/// A run's own file and the log of what it says, beside its folder.
fn beside(folder: &Path) -> [PathBuf; 2] {
    // The name has dots of its own.
    ["yaml", "log"].map(|ending| {
        let mut path = folder.as_os_str().to_owned();
        path.push(".");
        path.push(ending);
        PathBuf::from(path)
    })
}

/// The last mistake that a log has behind `from` bytes, to be put behind others' words.
fn last_error(log: &Path, from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let from = from.max(fs::metadata(log).ok()?.len().saturating_sub(END_OF_LOG));
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(END_OF_LOG).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find_map(|line| line.strip_prefix(ERROR))?;
    Some(format!(" ({line})"))
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
