//! A checkpoint that a thread of its own writes while training goes on.

use std::path::Path;
use std::thread::{self, JoinHandle};

use crate::error::failure;
use crate::{Result, TrainError};

/// A write on a thread of its own. Dropping it waits for its end: nothing that was begun is lost.
#[derive(Debug)]
pub(crate) struct Writing<T> {
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Writing<T> {
    /// Starts the thread, which writes to `output`.
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
    /// Whether the thread has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Lets the thread run on unobserved: what it writes is of no use.
    pub(crate) fn leave(&mut self) {
        self.thread = None;
    }

    /// Waits for the thread's end and returns its result; at most once.
    pub(crate) fn wait(&mut self) -> Result<T> {
        let ended = self.thread.take().map(JoinHandle::join);
        let panicked = || TrainError::Internal(String::from("the writer of a checkpoint panicked"));
        ended.and_then(std::result::Result::ok).ok_or_else(panicked)?
    }
}

impl<T> Drop for Writing<T> {
    fn drop(&mut self) {
        // An error of the write does not matter here: the run ends with an error of its own.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
