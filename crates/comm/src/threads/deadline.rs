//! How long a rank waits for one that shows no progress, in time that it saw pass, not by the clock.
//!
//! After a pause of the whole process (SIGSTOP, a suspended laptop, a moved virtual machine) the clock
//! is far ahead, though no peer had the time to do anything. So time is counted in slices, one for each
//! check of the peer, and a slice counts for no more than it was meant to last: a pause, however long,
//! is one slice. After a long one the count starts anew: the deadlines of others went on meanwhile, and
//! a peer that has ended since is not to blame. A peer that makes no progress while this rank runs is
//! found after the deadline all the same, or later where the machine is too busy to check in time.

use std::time::{Duration, Instant};

/// How long one wait between two checks lasts where the deadline is long.
const LONGEST: Duration = Duration::from_millis(20);
/// How long one wait between two checks lasts where the deadline is short.
const SHORTEST: Duration = Duration::from_millis(1);
/// A deadline is at least so many slices, so that a pause is a small part of it.
const SLICES: u32 = 8;

/// After so long without a check this process was stopped, or had no core: it does not know what others did meanwhile.
pub(super) const AWAY: Duration = Duration::from_millis(500);

/// The time that counts against one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlineTimer {
    deadline: Duration,
    /// When the peer was checked last.
    checked_at: Instant,
    /// Time counted since the peer last made progress.
    without_progress: Duration,
    /// Time counted in all.
    waited: Duration,
}

impl DeadlineTimer {
    /// A timer that starts at `now`.
    pub(crate) fn new(deadline: Duration, now: Instant) -> DeadlineTimer {
        DeadlineTimer {
            deadline,
            checked_at: now,
            without_progress: Duration::ZERO,
            waited: Duration::ZERO,
        }
    }

    /// How long to wait between two checks.
    pub(crate) fn slice(&self) -> Duration {
        (self.deadline / SLICES).clamp(SHORTEST, LONGEST)
    }

    /// Counts the time from the last check to this one, at `now`.
    pub(crate) fn check(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.checked_at);
        if passed > AWAY {
            self.restart();
        }
        let passed = passed.min(self.slice());
        self.checked_at = now;
        self.without_progress += passed;
        self.waited += passed;
    }

    /// Starts anew, as the peer has made progress.
    pub(crate) fn restart(&mut self) {
        self.without_progress = Duration::ZERO;
    }

    /// Whether the peer made no progress for the whole deadline.
    pub(crate) fn has_expired(&self) -> bool {
        self.without_progress >= self.deadline
    }

    /// The time counted in all.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(2);

    /// Checks every slice for `time`. Returns whether the deadline expired.
    fn watch(timer: &mut DeadlineTimer, now: &mut Instant, time: Duration) -> bool {
        let end = *now + time;
        while *now < end && !timer.has_expired() {
            *now += timer.slice();
            timer.check(*now);
        }
        timer.has_expired()
    }

    #[test]
    fn pauses_of_the_whole_process_do_not_count() {
        let mut now = Instant::now();
        let mut timer = DeadlineTimer::new(DEADLINE, now);
        for _ in 0..10 {
            now += 2 * DEADLINE;
            timer.check(now);
            assert!(!watch(&mut timer, &mut now, DEADLINE / 20));
        }
        assert!(timer.waited() < DEADLINE, "{timer:?}");
        assert!(!watch(&mut timer, &mut now, DEADLINE * 9 / 10), "all of the deadline");
        assert!(watch(&mut timer, &mut now, DEADLINE / 5));
    }

    #[test]
    fn a_peer_that_stands_still_is_found_at_the_deadline() {
        for milliseconds in [1, 7, 100, 300, 60_000] {
            let (start, deadline) = (Instant::now(), Duration::from_millis(milliseconds));
            let (mut now, mut timer) = (start, DeadlineTimer::new(deadline, start));
            assert!(watch(&mut timer, &mut now, 2 * deadline));
            assert!(now - start < deadline + timer.slice(), "{:?}", now - start);
            timer.restart();
            assert!(!timer.has_expired());
        }
    }

    #[test]
    fn a_clock_that_goes_back_counts_nothing() {
        let earlier = Instant::now();
        let mut timer = DeadlineTimer::new(DEADLINE, earlier + DEADLINE);
        timer.check(earlier);
        assert_eq!(timer.waited(), Duration::ZERO);
    }
}
