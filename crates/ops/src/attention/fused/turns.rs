//! Turns of jobs that add to the same rows, so that sums have the same bits whichever worker comes first.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{panicking, yield_now};

/// The number of looks before a waiting worker yields.
const LOOKS: usize = 256;

/// The next turn of every place. Jobs must be taken in an order in which none waits for a later one.
#[derive(Debug)]
pub(super) struct Turns {
    next: Vec<AtomicUsize>,
    /// Whether a job panicked: there is no turn to wait for.
    stopped: AtomicBool,
}

/// A job that takes turns; if it panics, it ends everybody's waiting.
#[derive(Debug)]
pub(super) struct Taker<'a>(&'a Turns);

impl Turns {
    pub(super) fn new(places: usize) -> Turns {
        let next = std::iter::repeat_with(|| AtomicUsize::new(0)).take(places).collect();
        Turns { next, stopped: AtomicBool::new(false) }
    }

    pub(super) fn taker(&self) -> Taker<'_> {
        Taker(self)
    }
}

impl Taker<'_> {
    /// Runs `job` at `place` after `turn` others.
    pub(super) fn take(&self, place: usize, turn: usize, job: impl FnOnce()) {
        let Turns { next, stopped } = self.0;
        let mut looks = 0;
        while next[place].load(Ordering::Acquire) != turn {
            assert!(!stopped.load(Ordering::Relaxed), "another job of this tile panicked");
            looks += 1;
            if looks < LOOKS { spin_loop() } else { yield_now() }
        }
        job();
        next[place].store(turn + 1, Ordering::Release);
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        if panicking() {
            self.0.stopped.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::Pool;

    #[test]
    fn everybody_comes_in_turn_whoever_is_first() {
        let (turns, seen) = (Turns::new(2), Mutex::new([Vec::new(), Vec::new()]));
        Pool::new(4).run(100, |job| {
            turns.taker().take(job % 2, job / 2, || {
                seen.lock()[job % 2].push(job / 2);
            });
        });
        let seen = seen.into_inner();
        assert!(seen.iter().all(|seen| seen.iter().copied().eq(0..50)));
    }

    #[test]
    #[should_panic(expected = "job 3")]
    fn nobody_waits_for_a_job_that_panicked() {
        let turns = Turns::new(1);
        Pool::new(2).run(8, |job| {
            let taker = turns.taker();
            assert!(job != 3, "job 3");
            taker.take(0, job, || ());
        });
    }
}
