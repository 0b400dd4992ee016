//! What the ranks of a process decide together: whether a step is applied to the state that they share.
//!
//! A rank learns that all ranks have contributed to a step when its last sum is there; a request to stop, or a failure elsewhere, may
//! come in between and find some ranks of the process with that sum and some without. None applies the step then. No message is
//! needed for it: they share memory.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a rank that waits says that it is alive.
const PULSE: Duration = Duration::from_millis(50);

/// Where the ranks of a process meet.
#[derive(Debug)]
pub(crate) struct Commit {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// How often all have met.
    meetings: u64,
    /// Who is there, by rank of the process.
    here: Vec<bool>,
    /// One will not come any more.
    has_left: bool,
}

/// How a wait for the others ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    All,
    /// A rank has left.
    Not,
    /// This one has not come in time.
    Late(usize),
}

impl Commit {
    pub(crate) fn new(ranks: usize) -> Commit {
        let state = State { meetings: 0, here: vec![false; ranks], has_left: false };
        Commit { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Blocks until all ranks are here, of which this is the `own`-th; `alive` is called now and then. That a run is to stop does not
    /// end it: what one rank has applied, all do.
    pub(crate) fn meet(&self, own: usize, deadline: Duration, alive: &dyn Fn()) -> Met {
        let (mut state, began) = (self.lock(), Instant::now());
        if state.has_left {
            return Met::Not;
        }
        let meeting = state.meetings;
        state.here[own] = true;
        if state.here.iter().all(|here| *here) {
            state.here.fill(false);
            state.meetings += 1;
            self.changed.notify_all();
        }
        loop {
            // Whoever leaves behind a meeting has been there.
            match (state.meetings > meeting, state.has_left) {
                (true, _) => return Met::All,
                (false, true) => return Met::Not,
                (false, false) => {}
            }
            if let Some(late) = state.here.iter().position(|here| !here)
                && began.elapsed() > deadline
            {
                state.has_left = true;
                self.changed.notify_all();
                return Met::Late(late);
            }
            let waited = self.changed.wait_timeout(state, PULSE);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            alive();
        }
    }

    /// A rank will not come any more.
    pub(crate) fn leave(&self) {
        self.lock().has_left = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{scope, sleep};

    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    #[test]
    fn all_go_on_together_or_none_does() {
        let (commit, came) = (Commit::new(3), AtomicUsize::new(0));
        scope(|scope| {
            for rank in 0..3 {
                let (commit, came) = (&commit, &came);
                scope.spawn(move || {
                    for meeting in 1..=20 {
                        sleep(Duration::from_micros(100 * rank as u64));
                        came.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(commit.meet(rank, PATIENT, &|| ()), Met::All);
                        assert!(came.load(Ordering::SeqCst) >= 3 * meeting);
                    }
                    // The first to leave was at the last meeting, as all were.
                    commit.leave();
                    assert_eq!(commit.meet(rank, PATIENT, &|| ()), Met::Not);
                });
            }
        });
    }

    #[test]
    fn who_waits_for_a_rank_that_leaves_is_told() {
        let commit = Commit::new(3);
        scope(|scope| {
            let commit = &commit;
            let waiting =
                [0, 2].map(|rank| scope.spawn(move || commit.meet(rank, PATIENT, &|| ())));
            sleep(Duration::from_millis(5));
            commit.leave();
            for one in waiting {
                assert_eq!(one.join().expect("no rank panics"), Met::Not);
            }
        });
    }

    #[test]
    fn who_does_not_come_is_named_and_waited_for_no_longer() {
        let (commit, alive) = (Commit::new(2), AtomicUsize::new(0));
        let count = || {
            alive.fetch_add(1, Ordering::Relaxed);
        };
        assert_eq!(commit.meet(1, 2 * PULSE, &count), Met::Late(0));
        assert!(alive.into_inner() >= 2);
        assert_eq!(commit.meet(0, PATIENT, &|| ()), Met::Not);
    }
}
