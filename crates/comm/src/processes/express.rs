//! What goes between GPUs of processes by NCCL, while MPI carries what is said of it.
//!
//! Envelopes go by MPI, as always: so calls that do not match are found, and a rank that is late is waited for and blamed as ever.
//! What a rank posts together is a round. A round goes to NCCL once all that it receives was announced, so that rooms are as large as
//! what comes. Rounds go in the order in which they were posted, which is the same for all ranks, so that no two wait for each other.
//! On a GPU nothing waits for a round but the stream that computes: what was received is only known to be there once it was asked
//! ([`Express::settle`]).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use annulus_memory::on_behalf_of;
use annulus_nccl::{Found, Gate, Id, Lane, Mark, Piece, Shipment};
use candle_core::{Shape, Tensor};

use super::envelope::{Parcel, Passes};
use crate::threads::{self, Group, SMALL, Ticket, lock};
use crate::{Error, Form, Label, Result, payload};

/// How often whoever waits for the device looks whether the run goes on.
const LOOK: Duration = Duration::from_millis(5);

/// What all processes agreed to use.
#[derive(Clone)]
pub(crate) struct Joined {
    pub(crate) found: Found,
    pub(crate) lane: Arc<dyn Lane>,
}

/// What a run's rank here, the only one, has on its way by NCCL.
pub(super) struct Express {
    pub(super) joined: Joined,
    /// The rank here.
    pub(super) rank: usize,
    state: Mutex<State>,
    pub(super) wake: Condvar,
    group: Mutex<Weak<Group>>,
}

/// Which message, by the rank at its other end.
type Way = (usize, Ticket);

#[derive(Default)]
pub(super) struct State {
    /// The clique's name, once it is known.
    pub(super) id: Option<Id>,
    /// What is sent in the round that is being posted.
    open: Vec<(Way, Piece)>,
    /// In the order in which they were posted.
    rounds: VecDeque<Round>,
    /// Announced, and of no round yet that is next.
    told: Vec<Parcel>,
    /// What came by MPI.
    here: Vec<Way>,
    /// Announced, and not handed on.
    coming: Vec<Way>,
    /// Behind what has gone.
    gone: Vec<(Way, Arc<dyn Mark>)>,
    /// Something was put here since the thread looked last.
    pub(super) is_new: bool,
    /// Rounds that were handed to NCCL, and have not ended.
    pub(super) under_way: usize,
    /// The run has ended here.
    pub(super) ends: bool,
    /// Why nothing goes any more.
    failed: Option<String>,
}

/// What was posted together.
pub(super) struct Round {
    pub(super) label: Label,
    pub(super) sends: Vec<(Way, Piece)>,
    dues: Vec<Expected>,
    pub(super) receives: Vec<(Parcel, Piece)>,
    gates: Vec<Gate>,
}

/// What a receive waits for, and its room where it is known beforehand what comes.
struct Expected {
    way: Way,
    room: Option<Piece>,
}

impl Express {
    pub(super) fn new(joined: Joined, rank: usize) -> Arc<Express> {
        Arc::new(Express {
            joined,
            rank,
            state: Mutex::default(),
            wake: Condvar::new(),
            group: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whose ranks these are.
    pub(super) fn is_of(&self, group: &Arc<Group>) {
        *lock(&self.group) = Arc::downgrade(group);
    }

    pub(super) fn group(&self) -> Option<Arc<Group>> {
        lock(&self.group).upgrade()
    }

    /// Whether a tensor goes this way.
    pub(super) fn takes(&self, tensor: &Tensor) -> bool {
        payload::size(tensor) > SMALL && self.joined.lane.carries(tensor)
    }

    /// A tensor goes to a rank in the round that is being posted.
    pub(super) fn send(&self, way: Way, tensor: &Tensor) -> candle_core::Result<()> {
        let piece = self.joined.lane.leaving(tensor, way.0)?;
        self.state().open.push((way, piece));
        Ok(())
    }

    /// The round is posted, with these receives from other processes. On the rank's own thread: what it computes from now on is not
    /// waited for.
    pub(super) fn post(
        &self,
        label: Label,
        receives: Vec<(usize, Ticket, Option<Form>)>,
    ) -> candle_core::Result<()> {
        let room = |(from, ticket, form): (usize, Ticket, Option<Form>)| {
            let is_large = |form: &Form| form.bytes() > SMALL;
            let room = form.filter(is_large).map(|form| self.room(form, from));
            Ok(Expected { way: (from, ticket), room: room.transpose()? })
        };
        let dues = receives.into_iter().map(room).collect::<candle_core::Result<Vec<_>>>()?;
        let gates = vec![self.joined.lane.gate()?];
        let mut state = self.state();
        let sends = std::mem::take(&mut state.open);
        state.rounds.push_back(Round { label, sends, dues, receives: Vec::new(), gates });
        self.tell(state);
        Ok(())
    }

    fn room(&self, Form { dtype, shape }: Form, from: usize) -> candle_core::Result<Piece> {
        self.joined.lane.room(dtype, shape, from)
    }

    /// A tensor comes this way.
    pub(super) fn told(&self, parcel: Parcel) {
        let mut state = self.state();
        state.coming.push((parcel.from, parcel.ticket()));
        state.told.push(parcel);
        self.tell(state);
    }

    /// A tensor came by MPI.
    pub(super) fn is_here(&self, from: usize, ticket: Ticket) {
        let mut state = self.state();
        state.here.push((from, ticket));
        self.tell(state);
    }

    /// Whether a tensor was announced that is not handed on.
    pub(super) fn is_coming(&self, from: usize, ticket: Ticket) -> bool {
        self.state().coming.contains(&(from, ticket))
    }

    /// The clique's name.
    pub(super) fn is_named(&self, id: &[u8]) {
        let mut state = self.state();
        state.id = Id::of(id);
        self.tell(state);
    }

    /// The run has ended here.
    pub(super) fn ends(&self) {
        let mut state = self.state();
        state.ends = true;
        self.tell(state);
    }

    /// The thread is to look.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        state.is_new = true;
        self.wake.notify_all();
    }

    /// Blocks until all that was posted has been sent and has come: on a GPU, what was received until now is there then.
    pub(super) fn settle(&self) -> Result<()> {
        let mut state = self.state();
        loop {
            if let Some(why) = &state.failed {
                return Err(Error::Engine { why: why.as_str().into() });
            }
            if state.rounds.is_empty() && state.under_way == 0 {
                return Ok(());
            }
            drop(state);
            self.group().map_or(Ok(()), |group| group.running(self.rank))?;
            let waited = self.wake.wait_timeout(self.state(), LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// So many rounds are on their way: what waits for their end is told.
    pub(super) fn have_not_ended(&self, under_way: usize) {
        let mut state = self.state();
        if std::mem::replace(&mut state.under_way, under_way) > under_way {
            self.wake.notify_all();
        }
    }

    /// The next round, if all that it receives was announced and not all of it goes by MPI.
    pub(super) fn next(&self) -> candle_core::Result<Option<Round>> {
        loop {
            let mut state = self.state();
            let Some(mut round) = state.rounds.pop_front() else { return Ok(None) };
            let news = state.settle(&mut round.dues);
            if !round.dues.is_empty() {
                round.receives.extend(self.rooms(news, &mut round.gates)?);
                state.rounds.push_front(round);
                return Ok(None);
            }
            state.under_way += 1;
            drop(state);
            round.receives.extend(self.rooms(news, &mut round.gates)?);
            if !round.sends.is_empty() || !round.receives.is_empty() {
                return Ok(Some(round));
            }
            // All of it went by MPI.
            self.state().under_way -= 1;
        }
    }

    /// A room for each of what was announced: that which was made for it, if it has its form.
    fn rooms(
        &self,
        told: Vec<(Parcel, Option<Piece>)>,
        gates: &mut Vec<Gate>,
    ) -> candle_core::Result<Vec<(Parcel, Piece)>> {
        let mut is_new = false;
        let mut room = |(parcel, room): (Parcel, Option<Piece>)| {
            let Some(dtype) = parcel.dtype() else {
                candle_core::bail!("a dtype of an envelope cannot be read")
            };
            let form = Form { dtype, shape: Shape::from(parcel.dims.as_slice()) };
            if let Some(room) = room.filter(|room| Form::of(&room.tensor) == form) {
                return Ok((parcel, room));
            }
            is_new = true;
            let room = || self.room(form, parcel.from);
            let room = on_behalf_of(parcel.to, parcel.class(), room)?;
            Ok((parcel, room))
        };
        let rooms = told.into_iter().map(&mut room).collect::<candle_core::Result<Vec<_>>>()?;
        if is_new {
            // Memory that was used before may be so still, until the device is here.
            gates.push(self.joined.lane.gate()?);
        }
        Ok(rooms)
    }

    /// A round is on the lane: what comes is handed on, to be read behind `mark`, and what goes is as good as gone.
    pub(super) fn hand_on(
        self: &Arc<Self>,
        round: Round,
        mark: &Arc<dyn Mark>,
        passes: &mut Passes,
    ) {
        let Some(group) = self.group() else { return };
        for (parcel, piece) in round.receives {
            let (ticket, label) = (parcel.ticket(), parcel.label(passes));
            let (express, mark) = (self.clone(), mark.clone());
            let after: threads::After =
                Box::new(move |tensor| express.settled(&mark).map(|()| tensor));
            let after = Some(after);
            group.deliver(
                parcel.from,
                parcel.to,
                threads::Parcel { ticket, label, tensor: piece.tensor, after },
            );
            self.state().coming.retain(|way| *way != (parcel.from, ticket));
        }
        let mut state = self.state();
        // Of what nobody waited for.
        state.gone.retain(|(_, mark)| !matches!(mark.is_over(), Ok(true)));
        state.gone.extend(round.sends.iter().map(|(way, _)| (*way, mark.clone())));
        drop(state);
        for ((to, ticket), _) in round.sends {
            group.has_sent(self.rank, to, ticket);
        }
    }

    /// What is computed from now on comes behind a transfer.
    fn settled(&self, mark: &Arc<dyn Mark>) -> Result<()> {
        let group = self.group();
        let running = || group.as_ref().map_or(Ok(()), |group| group.running(self.rank));
        let settled =
            mark.precede_computing(&|| self.state().failed.is_some() || running().is_err());
        // Why it was given up is another rank's to say, or NCCL's.
        running()?;
        let failed = self.state().failed.clone();
        match (failed, settled) {
            (Some(why), _) => Err(Error::Engine { why: why.into() }),
            (None, Err(error)) => Err(Error::Engine { why: error.to_string().into() }),
            (None, Ok(())) => Ok(()),
        }
    }

    /// The same of what was sent: the sender may write over it.
    pub(super) fn wait_to_leave(&self, way: Way) -> Result<()> {
        let mut state = self.state();
        let found = state.gone.iter().position(|(one, _)| *one == way);
        let found = found.map(|index| state.gone.swap_remove(index));
        drop(state);
        found.map_or(Ok(()), |(_, mark)| self.settled(&mark))
    }

    /// What is under way does not come to its end, and nothing goes any more.
    pub(super) fn gives_up(&self, why: &str) {
        let mut state = self.state();
        state.failed.get_or_insert_with(|| why.to_owned());
        self.tell(state);
    }

    /// The same, and all ranks end for it.
    pub(super) fn fail(&self, why: &str) {
        self.gives_up(why);
        if let Some(group) = self.group() {
            group.lose(why.to_owned());
        }
    }
}

impl State {
    /// Takes out of `dues` what was announced, with its room, and what came by MPI.
    fn settle(&mut self, dues: &mut Vec<Expected>) -> Vec<(Parcel, Option<Piece>)> {
        let mut news = Vec::new();
        dues.retain_mut(|due| {
            if let Some(index) = self.here.iter().position(|way| *way == due.way) {
                self.here.swap_remove(index);
                return false;
            }
            let is_due = |parcel: &Parcel| (parcel.from, parcel.ticket()) == due.way;
            let Some(index) = self.told.iter().position(is_due) else { return true };
            news.push((self.told.remove(index), due.room.take()));
            false
        });
        news
    }
}

impl Round {
    /// The ranks that it is with.
    pub(super) fn peers(&self) -> Vec<usize> {
        let receives = self.receives.iter().map(|(parcel, _)| parcel.from);
        let mut peers: Vec<usize> =
            self.sends.iter().map(|((to, _), _)| *to).chain(receives).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// As NCCL is handed it. Between two ranks both sides have what goes in the order in which it was posted.
    pub(super) fn shipment(&mut self) -> Shipment {
        // Announced in any order.
        self.receives.sort_by_key(|(parcel, _)| (parcel.from, parcel.ticket().number));
        Shipment {
            gates: std::mem::take(&mut self.gates),
            sends: self.sends.iter().map(|(_, piece)| piece.clone()).collect(),
            receives: self.receives.iter().map(|(_, piece)| piece.clone()).collect(),
        }
    }
}
