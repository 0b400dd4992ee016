//! What the ranks of a process decide together: whether a step is applied to the state that they share.
//!
//! A rank learns that all ranks have contributed to a step when its last sum is there; a request to stop, or a failure elsewhere, may
//! come in between and find some ranks of the process with that sum and some without. None applies the step then. No message is
//! needed for it: they share memory.

use std::sync::{Condvar, Mutex, PoisonError};

/// Where the ranks of a process meet.
#[derive(Debug)]
pub(crate) struct Commit {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often all have met.
    meetings: u64,
    /// How many are there.
    here: usize,
    /// One will not come any more.
    has_left: bool,
}

impl Commit {
    pub(crate) fn new(ranks: usize) -> Commit {
        Commit { ranks, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Blocks until all ranks are here; whether they are, or one has left.
    pub(crate) fn meet(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.has_left {
            return false;
        }
        let meeting = state.meetings;
        state.here += 1;
        if state.here == self.ranks {
            state.here = 0;
            state.meetings += 1;
            self.changed.notify_all();
        }
        let is_open = |state: &mut State| state.meetings == meeting && !state.has_left;
        let waited = self.changed.wait_while(state, is_open);
        // Whoever leaves behind a meeting has been there.
        waited.unwrap_or_else(PoisonError::into_inner).meetings > meeting
    }

    /// A rank will not come any more.
    pub(crate) fn leave(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_left = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{scope, sleep};
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_go_on_together_or_none_does() {
        let (commit, came) = (Commit::new(3), AtomicUsize::new(0));
        scope(|scope| {
            for rank in 0..3 {
                let (commit, came) = (&commit, &came);
                scope.spawn(move || {
                    for meeting in 1..=20 {
                        sleep(Duration::from_micros(100 * rank));
                        came.fetch_add(1, Ordering::SeqCst);
                        assert!(commit.meet());
                        assert!(came.load(Ordering::SeqCst) >= 3 * meeting);
                    }
                    // The first to leave was at the last meeting, as all were.
                    commit.leave();
                    assert!(!commit.meet());
                });
            }
        });
    }

    #[test]
    fn who_waits_for_a_rank_that_leaves_is_told() {
        let commit = Commit::new(3);
        scope(|scope| {
            let waiting = [0, 1].map(|_| scope.spawn(|| commit.meet()));
            sleep(Duration::from_millis(5));
            commit.leave();
            for one in waiting {
                assert!(!one.join().expect("no rank panics"));
            }
        });
    }
}
