//! Runs each run of a sweep as a process, `annulus train` with a file of its own, so that the end of one does not end another.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use annulus_comm::flight::EARLY;
use annulus_experiment::{Sweep, SweptRun};
use annulus_text::duration;
use annulus_train::{Exit, holder, run_summary};
use parking_lot::Mutex;

use super::room::{AtOnce, keep_to};
use crate::failure::Failure;
use crate::{launch, print};

/// How often processes are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The bytes at the end of a log that are searched for an error.
const END_OF_LOG: u64 = 1 << 16;
/// The beginning of an error message.
const ERROR: &str = "error: ";

/// The results of the runs that were left to do.
pub(super) struct Results {
    /// The runs that are finished now.
    pub(super) done: Vec<usize>,
    /// The runs that failed, in order, each with the reason.
    pub(super) failed: Vec<(usize, String)>,
}

/// Runs a sweep's runs.
pub(super) struct Jobs<'a> {
    sweep: &'a Sweep,
    at_once: AtOnce,
    stop: &'a AtomicBool,
    program: OsString,
    /// The runs that have not begun.
    queue: Mutex<VecDeque<usize>>,
    results: Mutex<Results>,
}

/// How a run ended.
enum End {
    Finished(Duration),
    /// The sweep or the run was asked to stop; it resumes the next time.
    Stopped,
    Failed(String),
}

impl<'a> Jobs<'a> {
    pub(super) fn new(
        sweep: &'a Sweep,
        at_once: AtOnce,
        stop: &'a AtomicBool,
    ) -> Result<Self, Failure> {
        let program = launch::this_program()?;
        let results = Mutex::new(Results { done: Vec::new(), failed: Vec::new() });
        Ok(Jobs { sweep, at_once, stop, program: program.into(), queue: Mutex::default(), results })
    }

    /// Runs these, several at the same time, until all have ended or the sweep is asked to stop.
    pub(super) fn run(self, runs: Vec<usize>) -> Results {
        *self.queue.lock() = runs.into();
        thread::scope(|scope| {
            for slot in 0..self.at_once.runs {
                let jobs = &self;
                // A process is ended with the thread that started it, so threads stay until all runs are done.
                scope.spawn(move || {
                    keep_to(slot, jobs.at_once);
                    jobs.work();
                });
            }
        });
        let mut results = self.results.into_inner();
        results.failed.sort();
        results
    }

    /// Takes runs from the queue, one after another.
    fn work(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(index) = self.queue.lock().pop_front() else { break };
            let run = &self.sweep.runs[index];
            let end = self.one(run).unwrap_or_else(|error| End::Failed(error.to_string()));
            self.say(index, &end);
            let mut results = self.results.lock();
            match end {
                End::Finished(_) => results.done.push(index),
                End::Failed(why) => results.failed.push((index, why)),
                End::Stopped => {}
            }
        }
    }

    fn say(&self, index: usize, end: &End) {
        let (run, all) = (&self.sweep.runs[index], self.sweep.runs.len());
        let what = match end {
            End::Finished(took) => {
                let loss = run_summary(&run.experiment.output).ok().and_then(|run| run.train_loss);
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
        // The record that a supervisor reads is the sweep's own.
        command.env_remove(EARLY);
        let code = self.waited(&mut command)?;
        if code == 0 {
            return Ok(End::Finished(began.elapsed()));
        }
        if code == Exit::Preempted.code() || self.stop.load(Ordering::Relaxed) {
            return Ok(End::Stopped);
        }
        let exit = Exit::ALL.into_iter().find(|exit| exit.code() == code);
        let about = exit.map_or("a signal ended it", Exit::about);
        let said = last_error(&log, before).unwrap_or_default();
        Ok(End::Failed(format!("exit code {code}, {about}{said}; its log is `{}`", log.display())))
    }

    /// Starts a process and waits for its end. If the sweep is asked to stop, so is the process, which saves first.
    fn waited(&self, command: &mut Command) -> io::Result<u8> {
        let mut child = launch::start(command)?;
        let mut is_told = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(launch::code(status));
            }
            if !is_told && self.stop.load(Ordering::Relaxed) {
                is_told = true;
                // SAFETY: the child has not been waited for, so its id is still its own.
                unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for a process of an earlier sweep that is still writing to the run; false if the sweep was asked to stop meanwhile.
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
            thread::sleep(POLL_INTERVAL);
        }
        true
    }
}

/// The paths of a run's file and of its log, next to its folder.
fn beside(folder: &Path) -> [PathBuf; 2] {
    // Not `with_extension`: the name may contain dots.
    ["yaml", "log"].map(|ending| {
        let mut path = folder.as_os_str().to_owned();
        path.push(".");
        path.push(ending);
        PathBuf::from(path)
    })
}

/// The last error in a log after `from` bytes, in parentheses.
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
