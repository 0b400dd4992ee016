//! Between the thread that fetches, which may wait for a network, and the one that asked for it, which never does.

use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::HubError;

/// How often the one that waits is asked whether it still does.
const GLANCE: Duration = Duration::from_millis(50);

/// Bytes a second that are too few to wait for.
const LEAST: u64 = 1 << 10;

/// An event of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing has happened since the last event.
    Waiting,
    /// The progress of the fetch.
    Arrived {
        /// The bytes that have arrived so far.
        bytes: u64,
        /// The bytes that are to arrive in all.
        total: u64,
    },
    /// Another program fetches the same file: its lock is waited for.
    Locked(PathBuf),
    /// The hub could not be asked, for this reason: a commit is taken as it is in the cache.
    Unasked(String),
}

/// A callback for events, called at least twenty times a second; it returns false to stop the fetch.
pub type Progress<'a> = &'a mut dyn FnMut(Event) -> bool;

/// The end of the thread that fetches.
#[derive(Clone)]
pub(crate) struct Watch {
    told: SyncSender<Event>,
    stopped: Arc<AtomicBool>,
}

/// Runs `work` on a thread of its own until `progress` says stop; then the thread is left to itself, and ends soon.
pub(crate) fn watched<T: Send + 'static>(
    progress: Progress<'_>,
    work: impl FnOnce(&Watch) -> Result<T, HubError> + Send + 'static,
) -> Result<T, HubError> {
    // Nothing is fetched beyond what was told.
    let (told, events) = sync_channel(0);
    let stopped = Arc::new(AtomicBool::new(false));
    let watch = Watch { told, stopped: stopped.clone() };
    let builder = thread::Builder::new().name("fetching".to_owned());
    let thread = builder.spawn(move || work(&watch)).map_err(HubError::Thread)?;
    loop {
        let event = match events.recv_timeout(GLANCE) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Event::Waiting,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if !progress(event) {
            stopped.store(true, Ordering::Relaxed);
            return Err(HubError::Stopped);
        }
    }
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Watch {
    /// Sends an event; an error if the caller has given up.
    pub(crate) fn tell(&self, event: Event) -> Result<(), HubError> {
        self.told.send(event).map_err(|_| HubError::Stopped)?;
        self.check()
    }

    /// An error if the caller has given up.
    pub(crate) fn check(&self) -> Result<(), HubError> {
        if self.stopped.load(Ordering::Relaxed) { Err(HubError::Stopped) } else { Ok(()) }
    }

    /// Sleeps, but not on when nobody waits any more.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), HubError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.check()?;
            thread::sleep(GLANCE.min(end - Instant::now().min(end)));
        }
        self.check()
    }
}

/// What arrives, as long as it does so at [`LEAST`] bytes a second.
pub(crate) struct Paced<R> {
    inner: R,
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl<R: Read> Paced<R> {
    /// Looked at whenever a `window` is over.
    pub(crate) fn new(inner: R, window: Duration) -> Paced<R> {
        Paced { inner, window, since: Instant::now(), bytes: 0 }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.bytes += length as u64;
        let took = self.since.elapsed();
        if length > 0 && took >= self.window {
            if self.bytes < LEAST * self.window.as_secs().max(1) {
                let (bytes, seconds) = (self.bytes, took.as_secs());
                let message = format!("{bytes} bytes in {seconds} s, expected {LEAST} a second");
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trickles_is_given_up() {
        let mut slow = Paced::new(io::repeat(7), Duration::ZERO);
        assert_eq!(slow.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::TimedOut);
        let mut quick = Paced::new(io::repeat(7), Duration::ZERO);
        assert_eq!(quick.read(&mut [0; 2000]).unwrap(), 2000);
        let mut whole = Paced::new(io::empty(), Duration::ZERO);
        assert_eq!(whole.read(&mut [0; 10]).unwrap(), 0);
    }

    #[test]
    fn whoever_waits_can_stop_at_once() {
        let start = Instant::now();
        let done = watched(&mut |_| false, |watch| watch.sleep(Duration::from_secs(60)));
        assert!(matches!(done, Err(HubError::Stopped)));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
