//! Runs others' code on a thread of its own, within limits of memory and time.
//!
//! An allocator must not unwind, and a null from it ends the process. So a thread that asks for more than its limit never gets an answer:
//! it sleeps in the allocator until the process ends and keeps what it has, and whoever waits for it is told. This suits input that is
//! about to be refused, not work that is retried again and again.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The limits of a confined thread.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that it may hold at once beyond those at its start, in blocks of any size. Unlimited where [`crate::Counting`] is not the
    /// program's allocator.
    pub bytes: usize,
    /// The time that it may run, without pauses of the whole process.
    pub time: Duration,
    /// Bytes of its stack, of which only touched pages take memory.
    pub stack: usize,
}

/// The reason why a confined thread gave no result.
#[derive(Debug)]
pub enum Confined {
    /// The thread asked for more memory than its limit.
    Memory,
    /// The thread did not end in time.
    Time,
    /// The thread panicked.
    Panic,
    /// The thread could not be started.
    Start(io::Error),
}

thread_local! {
    /// Bytes that this thread may still take, and where to report that it wanted more.
    static LEFT: Cell<Option<(isize, &'static AtomicU8)>> = const { Cell::new(None) };
}

/// States of confined threads: static, since an allocator cannot own what must be freed. A sleeping thread keeps its place forever.
static PLACES: [AtomicU8; 64] = [const { AtomicU8::new(FREE) }; 64];
const FREE: u8 = 0;
const RUNS: u8 = 1;
const SLEEPS: u8 = 2;

/// How many more threads can be confined, beside those that run or sleep.
pub fn room_to_confine() -> usize {
    PLACES.iter().filter(|place| place.load(Ordering::Relaxed) == FREE).count()
}

/// The place of a thread that has not ended. Freed when that ends, even if nobody waits for it any more; a sleeping thread never frees it.
struct Own(&'static AtomicU8);

impl Drop for Own {
    fn drop(&mut self) {
        // Allocations after a panic are not limited.
        LEFT.set(None);
        self.0.store(FREE, Ordering::Release);
    }
}

/// The interval at which a waiting thread checks whether the confined one sleeps; a pause of the process counts as one interval.
const LOOK: Duration = Duration::from_millis(10);

/// Runs `job` within `limits` and returns its result.
///
/// # Errors
/// [`Confined`], after which the thread may sleep or run on, holding what it has.
pub fn confine<T: Send + 'static>(
    limits: Limits,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Confined> {
    let take = |place: &&AtomicU8| {
        place.compare_exchange(FREE, RUNS, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let all_taken = || io::Error::other(format!("{} confined threads run or sleep", PLACES.len()));
    let place = PLACES.iter().find(take).ok_or_else(all_taken).map_err(Confined::Start)?;
    let (send, result) = channel();
    let confined = move || {
        let own = Own(place);
        LEFT.set(Some((limits.bytes.min(isize::MAX as usize) as isize, place)));
        let done = job();
        LEFT.set(None);
        // Nobody waits any more if it took too long.
        let _ = send.send(done);
        drop(own);
    };
    let builder = thread::Builder::new().name("confined".into()).stack_size(limits.stack);
    let thread = builder.spawn(confined).inspect_err(|_| place.store(FREE, Ordering::Release));
    let thread = thread.map_err(Confined::Start)?;
    let mut looks = limits.time.as_nanos() / LOOK.as_nanos();
    let done = loop {
        match result.recv_timeout(LOOK) {
            Ok(done) => break Some(done),
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) if place.load(Ordering::Acquire) == SLEEPS => {
                return Err(Confined::Memory);
            }
            Err(RecvTimeoutError::Timeout) if looks == 0 => return Err(Confined::Time),
            Err(RecvTimeoutError::Timeout) => looks -= 1,
        }
    };
    // The thread only has to free what it captured.
    let joined = thread.join();
    done.filter(|_| joined.is_ok()).ok_or(Confined::Panic)
}

/// Takes `bytes` of this thread's limit. Does not return where they exceed it.
#[inline]
pub(crate) fn take(bytes: usize) {
    // A thread that is about to end has no thread-locals, and no limit.
    if let Ok(Some((left, place))) = LEFT.try_with(Cell::get) {
        let left = left.saturating_sub_unsigned(bytes);
        // A panicking thread prints, under locks that other threads need.
        if left < 0 && !thread::panicking() {
            place.store(SLEEPS, Ordering::Release);
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        }
        LEFT.set(Some((left, place)));
    }
}

/// Returns `bytes` to this thread's limit.
#[inline]
pub(crate) fn give(bytes: usize) {
    if let Ok(Some((left, place))) = LEFT.try_with(Cell::get) {
        LEFT.set(Some((left.saturating_add_unsigned(bytes), place)));
    }
}
