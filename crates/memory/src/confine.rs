//! Running what somebody else wrote: on a thread of its own, with so much memory and time and no more.
//!
//! An allocator must not unwind, and a null from it ends the process. So a thread that asks for more than its share is never
//! answered: it sleeps in the allocator to the end of the process, keeps what it has, and whoever waits for it is told.
//! That is for programs of others that are about to be refused, not for work that is tried again and again.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// What a confined thread may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that it holds at once beyond those it begins with, in blocks of any size. Not bounded where
    /// [`crate::Counting`] is not the program's allocator.
    pub bytes: usize,
    /// How long it may run. Pauses of the whole process are not counted.
    pub time: Duration,
    /// Its stack, in bytes, of which only what is touched takes memory.
    pub stack: usize,
}

/// Why a confined thread gave no result.
#[derive(Debug)]
pub enum Confined {
    /// It asked for more memory than it may have.
    Memory,
    /// It did not end in time.
    Time,
    /// It panicked.
    Panic,
    /// It could not be started.
    Start(io::Error),
}

thread_local! {
    /// Bytes that this thread may still take, and where to say that it wanted more.
    static LEFT: Cell<Option<(isize, &'static AtomicU8)>> = const { Cell::new(None) };
}

/// What is known of confined threads: an allocator cannot keep anything that has to be freed. A thread that sleeps keeps
/// its place for ever.
static PLACES: [AtomicU8; 64] = [const { AtomicU8::new(FREE) }; 64];
const FREE: u8 = 0;
const RUNS: u8 = 1;
const SLEEPS: u8 = 2;

/// How many confined threads there are room for, that run or sleep.
pub fn room_to_confine() -> usize {
    PLACES.iter().filter(|place| place.load(Ordering::Relaxed) == FREE).count()
}

/// A place whose thread has not ended. It is free when that ends, even if nobody waits for it any more; a thread that sleeps never
/// does.
struct Own(&'static AtomicU8);

impl Drop for Own {
    fn drop(&mut self) {
        // What a thread that panicked still asks for is nobody's.
        LEFT.set(None);
        self.0.store(FREE, Ordering::Release);
    }
}

/// How often somebody who waits looks whether the thread sleeps; a pause of the process counts as one look.
const LOOK: Duration = Duration::from_millis(10);

/// What `job` gives, run within `limits`.
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
        // Nobody waits any more where it took too long.
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
    // It has nothing left to do but to free what it captured.
    let joined = thread.join();
    done.filter(|_| joined.is_ok()).ok_or(Confined::Panic)
}

/// This thread asks for `bytes`. Does not return where it may not have them.
#[inline]
pub(crate) fn take(bytes: usize) {
    // A thread that is just ending has no variables, and no limit.
    if let Ok(Some((left, place))) = LEFT.try_with(Cell::get) {
        let left = left.saturating_sub_unsigned(bytes);
        // Who panics prints, under locks that others want.
        if left < 0 && !thread::panicking() {
            place.store(SLEEPS, Ordering::Release);
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        }
        LEFT.set(Some((left, place)));
    }
}

/// This thread gives `bytes` back.
#[inline]
pub(crate) fn give(bytes: usize) {
    if let Ok(Some((left, place))) = LEFT.try_with(Cell::get) {
        LEFT.set(Some((left.saturating_add_unsigned(bytes), place)));
    }
}
