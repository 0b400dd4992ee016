//! Ranks as threads of one process: the embedded default, every test, any laptop.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::{Communicator, Failure};

/// How a group of thread ranks is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many ranks.
    pub world: usize,
    /// How long a rank waits for a peer that shows no progress.
    pub deadline: Duration,
    /// Set from outside to stop the run: every wait then fails with [`crate::Error::Stopped`].
    pub stop: Arc<AtomicBool>,
}

/// Runs `program` on every rank, each a plain thread with 64 MiB of stack, and returns what they return, by rank.
///
/// The first rank that fails or panics ends all: the others' waits fail with [`crate::Error::Ended`].
pub fn run<T, E, F>(_options: &Options, _program: F) -> Result<Vec<T>, Failure<E>>
where
    T: Send,
    E: Send,
    F: Fn(Arc<dyn Communicator>) -> Result<T, E> + Send + Sync,
{
    todo!()
}
