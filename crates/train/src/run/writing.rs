//! What is written by a thread of its own while training goes on.

use std::path::Path;
use std::thread::{self, JoinHandle};

use crate::run::folder::failure;
use crate::{Result, TrainError};

/// It is finished when it is dropped: nothing that was begun is lost.
#[derive(Debug)]
pub(crate) struct Writing<T> {
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Writing<T> {
    /// Begins to write to `output`.
    pub(crate) fn begin(
        output: &Path,
        write: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Writing<T>> {
        let thread = thread::Builder::new().name(String::from("checkpoint")).spawn(write);
        let thread = thread.map_err(|error| failure("write a checkpoint to", output, &error))?;
        Ok(Writing { thread: Some(thread) })
    }
}

impl<T> Writing<T> {
    /// Whether nothing is left to wait for.
    pub(crate) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for nothing any more: what is written is of no use.
    pub(crate) fn leave(&mut self) {
        self.thread = None;
    }

    /// Waits for its end: what was written; once.
    pub(crate) fn wait(&mut self) -> Result<T> {
        let ended = self.thread.take().map(JoinHandle::join);
        let panicked = || TrainError::Internal(String::from("the writer of a checkpoint panicked"));
        ended.and_then(std::result::Result::ok).ok_or_else(panicked)?
    }
}

impl<T> Drop for Writing<T> {
    fn drop(&mut self) {
        // What ends the run otherwise is said of it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
