//! A rendezvous of the ranks of a process: each brings something, and all get what was made of it.
//!
//! They use it to decide together whether a step is applied to the state that they share. A rank learns that all ranks have contributed to
//! a step when its last sum arrives; a failure elsewhere may come in between and leave some ranks of the process with that sum and some
//! without. Then none applies the step. No message is needed: they share memory.

use std::fmt;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use annulus_comm::{Communicator, Error as CommError, Label, Watching};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Result;
use crate::step::rank::Rank;
use crate::step::state::division::MeetingRanks;

/// The longest time between two questions why another rank has left.
const ASKED: Duration = Duration::from_millis(1);

/// A rendezvous of the ranks of a process, each bringing a `T` and all getting the same `R`.
pub(crate) struct Meeting<T, R> {
    state: Mutex<State<T, R>>,
    changed: Condvar,
}

struct State<T, R> {
    /// How many meetings have ended.
    meetings: u64,
    /// What the ranks that have arrived brought, by rank of the process.
    brought: Vec<Option<T>>,
    /// The rank that is making the result.
    maker: Option<usize>,
    /// The result, until every rank has taken it.
    made: Option<Arc<R>>,
    taken: usize,
    /// The first rank that will not come any more, by number in the process.
    left: Option<usize>,
}

/// How a wait for the others ended.
#[derive(Debug)]
pub(crate) enum Met<R> {
    All(Arc<R>),
    /// This rank has left for good, by number in the process.
    Not(usize),
    /// A rank has not come in time.
    Late(CommError),
}

impl<T, R> Meeting<T, R> {
    /// A rendezvous of `ranks` ranks.
    pub(crate) fn new(ranks: usize) -> Meeting<T, R> {
        let brought = (0..ranks).map(|_| None).collect();
        let state = State { meetings: 0, brought, maker: None, made: None, taken: 0, left: None };
        Meeting { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The number of ranks that meet.
    pub(crate) fn ranks(&self) -> usize {
        self.lock().brought.len()
    }

    /// Blocks until all ranks are here; this is the rank that `seats` says, and `watch` looks after the first that is missing. The last to
    /// arrive makes the result of what all brought, in the order of ranks, while the others watch it: this may take long, or for ever on a
    /// GPU that hangs. A run that is to stop does not end a meeting: what one rank has applied, all must.
    pub(crate) fn meet<'a>(
        &self,
        seats: MeetingRanks,
        thing: T,
        make: impl FnOnce(Vec<T>) -> R,
        watch: impl Fn(usize) -> Box<dyn Watching + 'a>,
    ) -> Met<R> {
        let (own, mut state) = (seats.own, self.lock());
        if let Some(left) = state.left {
            return Met::Not(left);
        }
        let meeting = state.meetings;
        if let Some(things) = state.bring(own, thing) {
            drop(state);
            let made = make(things);
            state = self.lock();
            state.have(made);
            self.changed.notify_all();
        }
        let mut watching: Option<(usize, Box<dyn Watching + 'a>)> = None;
        loop {
            if let Some(ended) = state.ended(meeting) {
                return ended;
            }
            let late = state.late().unwrap_or(own);
            let (_, watched) = match watching.take().filter(|(of, _)| *of == late) {
                Some(same) => watching.insert(same),
                None => watching.insert((late, watch(late))),
            };
            self.changed.wait_for(&mut state, watched.slice());
            // The rank may have arrived meanwhile.
            if state.meetings == meeting
                && let Err(error) = watched.look()
            {
                drop(state);
                self.leave(seats.first + own * seats.step);
                return Met::Late(error);
            }
        }
    }

    /// Says that a rank, by number in the process, will not come to meetings any more.
    pub(crate) fn leave(&self, rank: usize) {
        self.lock().left.get_or_insert(rank);
        self.changed.notify_all();
    }

    /// Whether a rank will not come to meetings any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().left.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock()
    }
}

impl<T, R> State<T, R> {
    /// Brings rank `own`'s `thing`; returns what all brought if this rank is the last, which then makes the result.
    fn bring(&mut self, own: usize, thing: T) -> Option<Vec<T>> {
        self.brought[own] = Some(thing);
        if self.brought.iter().any(Option::is_none) {
            return None;
        }
        self.maker = Some(own);
        Some(self.brought.iter_mut().filter_map(Option::take).collect())
    }

    /// Ends a meeting with its result `made`; no rank gets it if one has left meanwhile.
    fn have(&mut self, made: R) {
        self.maker = None;
        if self.left.is_none() {
            self.made = Some(Arc::new(made));
            (self.meetings, self.taken) = (self.meetings + 1, 0);
        }
    }

    /// How meeting number `meeting` ended for one of its ranks; `None`: it has not. A rank that leaves afterwards was in it.
    fn ended(&mut self, meeting: u64) -> Option<Met<R>> {
        if self.meetings > meeting
            && let Some(made) = self.take()
        {
            return Some(Met::All(made));
        }
        self.left.map(Met::Not)
    }

    /// The rank that the others wait for: the one that makes the result, else the first that is missing.
    fn late(&self) -> Option<usize> {
        self.maker.or_else(|| self.brought.iter().position(Option::is_none))
    }

    /// The result; the last rank to take it removes it, and only then can the next meeting begin.
    fn take(&mut self) -> Option<Arc<R>> {
        self.taken += 1;
        if self.taken == self.brought.len() { self.made.take() } else { self.made.clone() }
    }
}

impl<T, R> fmt::Debug for Meeting<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meeting").finish_non_exhaustive()
    }
}

impl Rank {
    /// Meets the other ranks of the process, bringing `thing`; every rank gets the result.
    ///
    /// # Errors
    /// A rank that has left, for a reason that is known when its program has returned with an error, or one that is late.
    pub(crate) fn meet<T, R>(
        &self,
        meeting: &Meeting<T, R>,
        seats: MeetingRanks,
        thing: T,
        make: impl FnOnce(Vec<T>) -> R,
        label: Label,
    ) -> Result<Arc<R>> {
        let comm = &self.comm;
        let first = comm.rank() - self.division.process_ranks().own;
        let watch = |late| comm.watch(label, first + seats.first + late * seats.step);
        match meeting.meet(seats, thing, make, watch) {
            Met::All(made) => Ok(made),
            Met::Late(error) => Err(error.into()),
            Met::Not(left) => {
                comm.end_commit();
                Err(why_left(comm.as_ref(), label, first + left).into())
            }
        }
    }
}

/// Waits until it is known why rank `left` has left. It may still save a checkpoint before its program returns; where that returns without
/// an error, or goes on with something else, the deadline ends the wait.
fn why_left(comm: &dyn Communicator, label: Label, left: usize) -> CommError {
    let mut watched = comm.watch(label, left);
    loop {
        if let Err(error) = comm.progress().and_then(|()| watched.look()) {
            return error;
        }
        sleep(watched.slice().min(ASKED));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::scope;

    use annulus_comm::{Cause, threads};

    use super::*;

    /// Watches for ever, or for so many looks.
    struct Looks(Option<usize>);

    impl Watching for Looks {
        fn slice(&self) -> Duration {
            Duration::from_millis(1)
        }
        fn look(&mut self) -> annulus_comm::Result<()> {
            match &mut self.0 {
                Some(0) => Err(CommError::Ended { rank: 0 }),
                Some(left) => {
                    *left -= 1;
                    Ok(())
                }
                None => Ok(()),
            }
        }
    }

    /// The seat of rank `own` where all ranks of a process meet.
    fn seat(own: usize) -> MeetingRanks {
        MeetingRanks { own, first: 0, step: 1 }
    }

    /// Meets, bringing the own number; the result is the sum of all numbers.
    fn meet(meeting: &Meeting<usize, usize>, own: usize) -> Option<usize> {
        let met = meeting.meet(seat(own), own, |all| all.iter().sum(), |_| Box::new(Looks(None)));
        if let Met::All(sum) = met { Some(*sum) } else { None }
    }

    #[test]
    fn all_go_on_together_or_none_does() {
        let (meeting, came) = (Meeting::new(3), AtomicUsize::new(0));
        scope(|scope| {
            for rank in 0..3 {
                let (meeting, came) = (&meeting, &came);
                scope.spawn(move || {
                    for round in 1..=20 {
                        sleep(Duration::from_micros(100 * rank as u64));
                        came.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(meet(meeting, rank), Some(3));
                        assert!(came.load(Ordering::SeqCst) >= 3 * round);
                    }
                    // The first to leave was at the last meeting, as all were.
                    meeting.leave(rank);
                    assert_eq!(meet(meeting, rank), None);
                });
            }
        });
        assert!(meeting.lock().made.is_none(), "what all have taken is kept");
    }

    #[test]
    fn who_waits_for_a_rank_that_leaves_is_told() {
        let meeting = Meeting::new(3);
        scope(|scope| {
            let meeting = &meeting;
            let waiting = [0, 2].map(|rank| scope.spawn(move || meet(meeting, rank)));
            sleep(Duration::from_millis(5));
            meeting.leave(1);
            for one in waiting {
                assert_eq!(one.join().expect("no rank panics"), None);
            }
        });
    }

    #[test]
    fn the_first_that_is_not_here_is_watched_and_waited_for_no_longer_than_that_says() {
        let meeting = Meeting::new(3);
        let watched = Mutex::new(Vec::new());
        let watch = |late| -> Box<dyn Watching> {
            watched.lock().push(late);
            Box::new(Looks(Some(20)))
        };
        scope(|scope| {
            let meeting = &meeting;
            let first = scope.spawn(move || meet(meeting, 0));
            // On a busy machine it may come late itself.
            while meeting.lock().brought[0].is_none() {
                sleep(Duration::from_millis(1));
            }
            assert!(matches!(meeting.meet(seat(1), 1, |_| 0, watch), Met::Late(_)));
            assert_eq!(first.join().expect("no rank panics"), None);
        });
        assert_eq!(watched.into_inner().last(), Some(&2));
        assert_eq!(meet(&meeting, 2), None);
    }

    #[test]
    fn who_makes_something_for_ever_is_watched_and_nobody_has_it() {
        let meeting = Meeting::new(2);
        let watched = AtomicUsize::new(usize::MAX);
        let watch = |late| -> Box<dyn Watching> {
            watched.store(late, Ordering::SeqCst);
            Box::new(Looks(Some(20)))
        };
        scope(|scope| {
            let meeting = &meeting;
            let maker = scope.spawn(move || {
                // The other rank must arrive first: then this one is the last and makes the result.
                while meeting.lock().brought[0].is_none() {
                    sleep(Duration::from_millis(1));
                }
                let for_ever = |_| {
                    while !meeting.has_ended() {
                        sleep(Duration::from_millis(1));
                    }
                    7
                };
                let watch = |_| -> Box<dyn Watching> { Box::new(Looks(None)) };
                matches!(meeting.meet(seat(1), 1, for_ever, watch), Met::Not(0))
            });
            assert!(matches!(meeting.meet(seat(0), 0, |_| 0, watch), Met::Late(_)));
            assert!(maker.join().expect("no rank panics"), "it has what the other has not");
        });
        assert_eq!(watched.into_inner(), 1);
    }

    #[test]
    fn the_wait_for_the_reason_of_a_rank_that_left_ends() {
        let deadline = Duration::from_millis(300);
        let options = threads::Options { world: 2, deadline, stop: Arc::default() };
        let label = Label { pass: "commit", ..Label::default() };
        // Its program returns, with an error or without one; the other rank's returns what that learns.
        let learns = |returns: Option<&'static str>| {
            let found = threads::run(&options, |comm| match comm.rank() {
                0 => returns.map_or(Ok(None), Err),
                _ => Ok(Some(why_left(comm.as_ref(), label, 0))),
            });
            found.map(|mut all| all.swap_remove(1))
        };
        let without = learns(None).unwrap().unwrap();
        assert!(matches!(without, CommError::Deadline { rank: 1, peer: 0, .. }), "{without}");
        let with = learns(Some("a reason")).unwrap_err();
        assert!(matches!(with.cause, Cause::Error("a reason")), "{with}");
    }
}
