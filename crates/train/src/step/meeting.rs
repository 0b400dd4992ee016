//! Where the ranks of a process meet: each brings something, and all have what was made of it.
//!
//! What they decide together is whether a step is applied to the state that they share. A rank learns that all ranks have contributed
//! to a step when its last sum is there; a failure elsewhere may come in between and find some ranks of the process with that sum and
//! some without. None applies the step then. No message is needed for it: they share memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_comm::threads::Patience;
use annulus_comm::{Error as CommError, Label};

use crate::Result;
use crate::step::division::Seats;
use crate::step::rank::Rank;

/// How often one asks why another has left.
const ASKED: Duration = Duration::from_millis(1);

/// Where the ranks of a process meet.
pub(crate) struct Meeting<T, R> {
    state: Mutex<State<T, R>>,
    changed: Condvar,
    /// By rank of the process, a number that grows while it moves.
    moves: Arc<Moves>,
}

/// How far the ranks of a process have come: a late one that moves is waited for.
#[derive(Debug, Default)]
pub(crate) struct Moves(Vec<Arc<OnceLock<Arc<AtomicU64>>>>);

impl Moves {
    /// Of so many ranks.
    pub(crate) fn of(ranks: usize) -> Arc<Moves> {
        Arc::new(Moves((0..ranks).map(|_| Arc::default()).collect()))
    }

    /// Of so many of them from the first, so far apart.
    pub(crate) fn some(&self, first: usize, step: usize, many: usize) -> Arc<Moves> {
        Arc::new(Moves(self.0.iter().skip(first).step_by(step).take(many).cloned().collect()))
    }

    /// Where a rank says that it moves.
    pub(crate) fn are(&self, own: usize, moves: Arc<AtomicU64>) {
        if let Some(place) = self.0.get(own) {
            place.get_or_init(|| moves);
        }
    }

    fn by(&self, rank: usize) -> u64 {
        let moves = self.0.get(rank).and_then(|moves| moves.get());
        moves.map_or(0, |moves| moves.load(Ordering::Relaxed))
    }
}

struct State<T, R> {
    /// How often all have met.
    meetings: u64,
    /// What those brought who are there, by rank of the process.
    brought: Vec<Option<T>>,
    /// What was made of it, for as long as somebody has not taken it.
    made: Option<Arc<R>>,
    taken: usize,
    /// One will not come any more.
    has_left: bool,
}

/// How a wait for the others ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Met<R> {
    All(Arc<R>),
    /// A rank has left.
    Not,
    /// This one has not come in time.
    Late(usize),
}

impl<T, R> Meeting<T, R> {
    /// Of so many ranks, which say by `moves` how far they are.
    pub(crate) fn new(ranks: usize, moves: &Arc<Moves>) -> Meeting<T, R> {
        let brought = (0..ranks).map(|_| None).collect();
        let state = State { meetings: 0, brought, made: None, taken: 0, has_left: false };
        Meeting { state: Mutex::new(state), changed: Condvar::new(), moves: moves.clone() }
    }

    /// Blocks until all ranks are here, of which this is the `own`-th; `alive` is called now and then. The last makes something of what
    /// they brought, in the order of ranks. That a run is to stop does not end it: what one rank has applied, all do.
    pub(crate) fn meet(
        &self,
        (own, thing): (usize, T),
        make: impl FnOnce(Vec<T>) -> R,
        (deadline, alive): (Duration, &dyn Fn()),
    ) -> Met<R> {
        let (mut patience, mut seen) = (Patience::new(deadline, Instant::now()), None);
        let mut state = self.lock();
        if state.has_left {
            return Met::Not;
        }
        let meeting = state.meetings;
        if state.bring(own, thing, make) {
            self.changed.notify_all();
        }
        loop {
            // Whoever leaves behind a meeting has been there.
            if state.meetings > meeting {
                return state.take().map_or(Met::Not, Met::All);
            }
            if state.has_left {
                return Met::Not;
            }
            let late = state.brought.iter().position(Option::is_none).unwrap_or(own);
            let far = Some((late, self.moves.by(late)));
            if std::mem::replace(&mut seen, far) != far {
                patience.moved();
            }
            if patience.is_over() {
                drop(state);
                self.leave();
                return Met::Late(late);
            }
            let waited = self.changed.wait_timeout(state, patience.slice());
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            patience.look(Instant::now());
            alive();
        }
    }

    /// A rank will not come any more.
    pub(crate) fn leave(&self) {
        self.lock().has_left = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, R> State<T, R> {
    /// Has the `own`-th rank here; whether all are, and what is made of what they brought is there.
    fn bring(&mut self, own: usize, thing: T, make: impl FnOnce(Vec<T>) -> R) -> bool {
        self.brought[own] = Some(thing);
        let are_here = self.brought.iter().all(Option::is_some);
        if are_here {
            let things = self.brought.iter_mut().filter_map(Option::take).collect();
            self.made = Some(Arc::new(make(things)));
            (self.meetings, self.taken) = (self.meetings + 1, 0);
        }
        are_here
    }

    /// What was made: the last to take it takes it away. The next meeting is not before all have.
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
    /// Meets ranks of its process, with `thing`; all have what was made.
    ///
    /// # Errors
    /// One has left, for a reason that is known when its program has returned, or is late.
    pub(crate) fn meet<T, R>(
        &self,
        (meeting, seats): (&Meeting<T, R>, Seats),
        thing: T,
        make: impl FnOnce(Vec<T>) -> R,
        label: Label,
    ) -> Result<Arc<R>> {
        let (comm, deadline) = (&self.uncounted, self.setup.deadline);
        // That the run is to stop, or has ended elsewhere, does not end it.
        let alive = || drop(comm.progress());
        match meeting.meet((seats.own, thing), make, (deadline, &alive)) {
            Met::All(made) => Ok(made),
            Met::Not => {
                comm.hold_on(false);
                loop {
                    comm.progress()?;
                    sleep(ASKED);
                }
            }
            Met::Late(late) => {
                let rank = comm.rank();
                let peer = rank - self.division.crew().own + seats.first + late * seats.step;
                Err(CommError::Deadline { rank, peer, label, waited: deadline }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread::scope;

    use super::*;

    const PULSE: Duration = Duration::from_millis(50);
    const PATIENT: Duration = Duration::from_secs(60);

    /// Meets with the own number; what was made is the sum of all.
    fn meet(meeting: &Meeting<usize, usize>, own: usize) -> Met<usize> {
        meeting.meet((own, own), |all| all.iter().sum(), (PATIENT, &|| ()))
    }

    #[test]
    fn all_go_on_together_or_none_does() {
        let (meeting, came) = (Meeting::new(3, &Moves::of(3)), AtomicUsize::new(0));
        scope(|scope| {
            for rank in 0..3 {
                let (meeting, came) = (&meeting, &came);
                scope.spawn(move || {
                    for round in 1..=20 {
                        sleep(Duration::from_micros(100 * rank as u64));
                        came.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(meet(meeting, rank), Met::All(Arc::new(3)));
                        assert!(came.load(Ordering::SeqCst) >= 3 * round);
                    }
                    // The first to leave was at the last meeting, as all were.
                    meeting.leave();
                    assert_eq!(meet(meeting, rank), Met::Not);
                });
            }
        });
        assert!(meeting.lock().made.is_none(), "what all have taken is kept");
    }

    #[test]
    fn who_waits_for_a_rank_that_leaves_is_told() {
        let meeting = Meeting::new(3, &Moves::of(3));
        scope(|scope| {
            let meeting = &meeting;
            let waiting = [0, 2].map(|rank| scope.spawn(move || meet(meeting, rank)));
            sleep(Duration::from_millis(5));
            meeting.leave();
            for one in waiting {
                assert_eq!(one.join().expect("no rank panics"), Met::Not);
            }
        });
    }

    #[test]
    fn who_does_not_come_is_named_and_waited_for_no_longer() {
        let moves = Moves::of(2);
        let (meeting, alive) = (Meeting::new(2, &moves), AtomicUsize::new(0));
        let count = || {
            alive.fetch_add(1, Ordering::Relaxed);
        };
        // While it moves it is waited for.
        let far = Arc::new(AtomicU64::new(0));
        moves.are(0, far.clone());
        let began = Instant::now();
        let alive_and_moving = || {
            count();
            if began.elapsed() < 8 * PULSE {
                far.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert_eq!(meeting.meet((1, 1), |_| 0, (2 * PULSE, &alive_and_moving)), Met::Late(0));
        assert!(began.elapsed() >= 9 * PULSE, "{:?}", began.elapsed());
        assert!(alive.load(Ordering::Relaxed) >= 2);
        assert_eq!(meet(&meeting, 0), Met::Not);
    }
}
