//! Counts bytes, calls and waiting around any other communicator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Communicator;

/// What one rank handed to its communicator. A byte is payload; a collective counts its input once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload bytes by [`crate::Label::pass`].
    pub bytes: BTreeMap<&'static str, u64>,
    /// Calls.
    pub calls: u64,
    /// Time spent waiting.
    pub waiting: Duration,
    /// Time spent waiting for each peer (collectives: not attributed).
    pub waiting_for: BTreeMap<usize, Duration>,
}

/// A communicator that counts. Groups split from it count into the same totals.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Communicator>,
}

impl Metered {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Communicator>) -> Arc<Metered> {
        Arc::new(Metered { inner })
    }
    /// What was counted since the last call, and starts again from zero.
    pub fn take(&self) -> Traffic {
        let _ = &self.inner;
        todo!()
    }
}
