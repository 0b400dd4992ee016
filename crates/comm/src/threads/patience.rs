//! How long a rank waits for one that shows no progress: the time that it saw pass, not the clock.
//!
//! A process that is paused as a whole (SIGSTOP, a suspended laptop, a moved virtual machine) finds
//! the clock far ahead when it goes on, though no peer had the time to do anything. So time is
//! counted in slices, one per look at the peer, and a slice counts for no more than it was to last:
//! a pause, however long, is one slice. After a long one the count begins anew: the others' deadlines
//! went on meanwhile, and who has ended since is not to blame. A peer that stands still while this rank
//! runs is found after the deadline all the same, or later where the machine is too busy to look in time.

use std::time::{Duration, Instant};

/// How long one wait between two looks lasts where the deadline is long.
const LONGEST: Duration = Duration::from_millis(20);
/// The same where it is short.
const SHORTEST: Duration = Duration::from_millis(1);
/// A deadline is at least so many slices, so that a pause is a small part of it.
const SLICES: u32 = 8;

/// After so long without a look this process was stopped, or starved: what others did meanwhile it does not know.
pub(super) const AWAY: Duration = Duration::from_millis(500);

/// The time that counts against one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    deadline: Duration,
    /// When it was looked last.
    looked: Instant,
    /// Counted since the peer moved.
    still: Duration,
    /// Counted in all.
    waited: Duration,
}

impl Patience {
    /// Nothing is counted at `now`.
    pub(crate) fn new(deadline: Duration, now: Instant) -> Patience {
        Patience { deadline, looked: now, still: Duration::ZERO, waited: Duration::ZERO }
    }

    /// How long to wait between two looks.
    pub(crate) fn slice(&self) -> Duration {
        (self.deadline / SLICES).clamp(SHORTEST, LONGEST)
    }

    /// A look at `now`: counts what passed since the one before.
    pub(crate) fn look(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.looked);
        if passed > AWAY {
            self.moved();
        }
        let passed = passed.min(self.slice());
        self.looked = now;
        self.still += passed;
        self.waited += passed;
    }

    /// The peer has moved.
    pub(crate) fn moved(&mut self) {
        self.still = Duration::ZERO;
    }

    /// Whether the peer stood still for the whole deadline.
    pub(crate) fn is_over(&self) -> bool {
        self.still >= self.deadline
    }

    /// What was counted in all.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(2);

    /// Looks every slice for `time`; whether the deadline was met.
    fn watch(patience: &mut Patience, now: &mut Instant, time: Duration) -> bool {
        let end = *now + time;
        while *now < end && !patience.is_over() {
            *now += patience.slice();
            patience.look(*now);
        }
        patience.is_over()
    }

    #[test]
    fn pauses_of_the_whole_process_do_not_count() {
        let mut now = Instant::now();
        let mut patience = Patience::new(DEADLINE, now);
        for _ in 0..10 {
            now += 2 * DEADLINE;
            patience.look(now);
            assert!(!watch(&mut patience, &mut now, DEADLINE / 20));
        }
        assert!(patience.waited() < DEADLINE, "{patience:?}");
        assert!(!watch(&mut patience, &mut now, DEADLINE * 9 / 10), "all of the deadline");
        assert!(watch(&mut patience, &mut now, DEADLINE / 5));
    }

    #[test]
    fn a_peer_that_stands_still_is_found_at_the_deadline() {
        for milliseconds in [1, 7, 100, 300, 60_000] {
            let (start, deadline) = (Instant::now(), Duration::from_millis(milliseconds));
            let (mut now, mut patience) = (start, Patience::new(deadline, start));
            assert!(watch(&mut patience, &mut now, 2 * deadline));
            assert!(now - start < deadline + patience.slice(), "{:?}", now - start);
            patience.moved();
            assert!(!patience.is_over());
        }
    }

    #[test]
    fn a_clock_that_goes_back_counts_nothing() {
        let earlier = Instant::now();
        let mut patience = Patience::new(DEADLINE, earlier + DEADLINE);
        patience.look(earlier);
        assert_eq!(patience.waited(), Duration::ZERO);
    }
}
