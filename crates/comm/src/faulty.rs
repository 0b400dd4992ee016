//! Breaks things on purpose, for tests.

use std::sync::Arc;
use std::time::Duration;

use crate::Communicator;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call comes late.
    Delay(Duration),
    /// What was to be sent is not.
    Drop,
    /// One bit of what was sent is flipped.
    Corrupt,
    /// The rank panics.
    Die,
}

/// At which call it happens: the first whose label matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// On which rank (of the wrapped communicator).
    pub rank: usize,
    /// In which pass, as in [`crate::Label::pass`].
    pub pass: &'static str,
    /// At which hop; `None`: the first call of the pass, whatever its hop.
    pub hop: Option<usize>,
}

/// A communicator with one fault. Groups split from it have it too.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Communicator>,
    when: When,
    fault: Fault,
}

impl Faulty {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Communicator>, when: When, fault: Fault) -> Arc<Faulty> {
        Arc::new(Faulty { inner, when, fault })
    }
}
