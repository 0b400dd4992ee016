//! The workers of one rank.

use std::fmt;
use std::sync::Arc;

/// The workers of one rank. Nothing that waits for a peer may run inside.
#[derive(Clone)]
pub struct Pool(Option<Arc<rayon::ThreadPool>>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.workers())
    }
}

impl Pool {
    /// A pool of `workers` threads; with one, everything runs in the caller.
    pub fn new(_workers: usize) -> Pool {
        todo!()
    }
    /// Everything runs in the caller.
    pub fn serial() -> Pool {
        Pool(None)
    }
    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.0.as_ref().map_or(1, |pool| pool.current_num_threads())
    }
    /// Runs `job(0) .. job(jobs - 1)`, in any order, and returns when all are done.
    pub fn run(&self, _jobs: usize, _job: impl Fn(usize) + Send + Sync) {
        todo!()
    }
}
