//! When a job is told to stop: a signal to processes that are starting ends them or is lost, so it is sent once they can handle it, and again
//! until one has written into its flight record that it was asked.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use annulus_comm::flight::Wreck;

/// How long after a signal the next one is sent.
const AGAIN: Duration = Duration::from_secs(1);
/// How often flight records are read until there is one.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a first flight record is waited for: processes on other hosts write none where this one sees it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to stop that is passed on to a job.
pub(super) struct Request<'a> {
    stop: &'a AtomicBool,
    /// The folder of the job's first flight records.
    early: &'a Path,
    /// When the request was noticed.
    noticed: Option<Instant>,
    /// When to look next.
    next: Option<Instant>,
}

impl<'a> Request<'a> {
    pub(super) fn new(stop: &'a AtomicBool, early: &'a Path) -> Request<'a> {
        Request { stop, early, noticed: None, next: None }
    }

    /// Whether the job is to be signalled now.
    pub(super) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if !self.stop.load(Ordering::Relaxed) || self.next.is_some_and(|next| now < next) {
            return false;
        }
        let noticed = *self.noticed.get_or_insert(now);
        let records = Wreck::of_job(self.early).map(|wreck| wreck.records).unwrap_or_default();
        let has_arrived = records.iter().any(|record| record.head.asked.is_some());
        // A process handles signals before it joins the others, and begins its record once all have.
        let is_handled = !records.is_empty() || now - noticed >= PATIENCE;
        self.next = Some(now + if is_handled { AGAIN } else { POLL_INTERVAL });
        is_handled && !has_arrived
    }
}
