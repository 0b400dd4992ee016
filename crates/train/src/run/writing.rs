//! A checkpoint that is written by a thread of its own while training goes on.

use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use annulus_plan::Plan;

use crate::checkpoint::{Copied, Saved, State, save};
use crate::run::folder::failure;
use crate::{Result, TrainError};

/// It is finished when it is dropped: nothing that was begun is lost.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) step: u64,
    thread: Option<JoinHandle<Result<PathBuf>>>,
}

impl Writing {
    /// Begins to write a step.
    pub(crate) fn begin(
        output: &Path,
        plan: &Plan,
        state: State,
        mut copied: Copied,
    ) -> Result<Writing> {
        let (folder, plan, step) = (output.to_owned(), plan.clone(), state.step);
        let write = move || {
            save(&folder, Saved { plan: &plan, contents: &mut copied, state: &state, comm: None })
        };
        let thread = thread::Builder::new().name(String::from("checkpoint")).spawn(write);
        let thread = thread.map_err(|error| failure("write a checkpoint to", output, &error))?;
        Ok(Writing { step, thread: Some(thread) })
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end: where it is.
    pub(crate) fn end(mut self) -> Result<PathBuf> {
        let ended = self.thread.take().map(JoinHandle::join);
        let panicked = || TrainError::Internal(String::from("the writer of a checkpoint panicked"));
        ended.and_then(std::result::Result::ok).ok_or_else(panicked)?
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // What ends the run otherwise is said of it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
