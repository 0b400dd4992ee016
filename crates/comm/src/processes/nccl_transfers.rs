//! Tensors that go between GPUs of processes by NCCL, while their envelopes go by MPI.
//!
//! As every tensor has an envelope, mismatched calls are found, and late ranks waited for and blamed, as without NCCL.
//! What a rank posts together is a round. A round is submitted to NCCL once MPI has announced all that it receives, so that buffers have
//! the sizes of what comes. Rounds are submitted in the order in which they were posted, which is the same for all ranks, so that no two
//! wait for each other. On a GPU only the computing stream waits for a round: the host knows that data has arrived only after
//! [`NcclTransfers::settle`].

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use annulus_memory::on_behalf_of;
use annulus_nccl::{Found, Gate, Id, Lane, Mark, Piece, Transfers};
use candle_core::{Shape, Tensor};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::envelope::{Passes, TensorHeader};
use crate::threads::{self, Group, SMALL, Ticket};
use crate::{Error, Form, Label, Result, payload};

/// How often a rank that waits for the device checks whether the run goes on.
const CHECK: Duration = Duration::from_millis(5);

/// The library of NCCL, and the stream of its transfers on one device.
#[derive(Clone)]
pub(crate) struct NcclSetup {
    pub(crate) found: Found,
    pub(crate) lane: Arc<dyn Lane>,
}

/// The transfers by NCCL of the one rank of a run that is in this process.
pub(super) struct NcclTransfers {
    pub(super) setup: NcclSetup,
    /// The rank here.
    pub(super) rank: usize,
    state: Mutex<State>,
    pub(super) wake: Condvar,
    group: Mutex<Weak<Group>>,
}

/// A message, by the rank at its other end and its ticket.
type MessageId = (usize, Ticket);

#[derive(Default)]
pub(super) struct State {
    /// The clique's unique id, once it is known.
    pub(super) clique_id: Option<Id>,
    /// The sends of the round that is being posted.
    next_sends: Vec<(MessageId, Piece)>,
    /// Rounds that were not submitted to NCCL, in the order in which they were posted.
    rounds: VecDeque<Round>,
    /// Tensors that were announced, and not yet taken by the first of the rounds.
    announced: Vec<TensorHeader>,
    /// Tensors that came by MPI instead, not yet taken by the first of the rounds.
    came_by_mpi: Vec<MessageId>,
    /// Tensors that were announced and are not delivered.
    coming: Vec<MessageId>,
    /// What was sent, each with the mark after its round.
    sent: Vec<(MessageId, Arc<dyn Mark>)>,
    /// Something has changed since NCCL's thread looked last.
    pub(super) is_new: bool,
    /// How many rounds were submitted to NCCL and have not ended.
    pub(super) under_way: usize,
    /// The ranks that the oldest of them is with, if the device waits for it.
    pub(super) awaited: Vec<usize>,
    /// The run has ended here.
    pub(super) has_ended: bool,
    /// Why no transfer ends any more.
    failed: Option<String>,
}

/// The sends and receives that a rank posted together.
pub(super) struct Round {
    pub(super) label: Label,
    pub(super) sends: Vec<(MessageId, Piece)>,
    /// Receives of tensors that were not announced yet.
    expected: Vec<Expected>,
    pub(super) receives: Vec<(TensorHeader, Piece)>,
    gates: Vec<Gate>,
}

/// A tensor that is to be received, and its buffer if its form was known when the receive was posted.
struct Expected {
    id: MessageId,
    buffer: Option<Piece>,
}

impl NcclTransfers {
    pub(super) fn new(setup: NcclSetup, rank: usize) -> Arc<NcclTransfers> {
        Arc::new(NcclTransfers {
            setup,
            rank,
            state: Mutex::default(),
            wake: Condvar::new(),
            group: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the group that the rank is in.
    pub(super) fn set_group(&self, group: &Arc<Group>) {
        *self.group.lock() = Arc::downgrade(group);
    }

    pub(super) fn group(&self) -> Option<Arc<Group>> {
        self.group.lock().upgrade()
    }

    /// Whether `tensor` is sent by NCCL.
    pub(super) fn takes(&self, tensor: &Tensor) -> bool {
        payload::bytes_of(tensor) > SMALL && self.setup.lane.carries(tensor)
    }

    /// Adds the send of a tensor to the round that is being posted.
    pub(super) fn send(&self, id: MessageId, tensor: &Tensor) -> candle_core::Result<()> {
        let piece = self.setup.lane.leaving(tensor, id.0)?;
        self.state().next_sends.push((id, piece));
        Ok(())
    }

    /// Posts the round, with these receives from other processes. Called on the rank's own thread: the round does not wait for what the
    /// rank computes after this.
    pub(super) fn post(
        &self,
        label: Label,
        receives: Vec<(usize, Ticket, Option<Form>)>,
    ) -> candle_core::Result<()> {
        let expect = |(from, ticket, form): (usize, Ticket, Option<Form>)| {
            let is_large = |form: &Form| form.bytes() > SMALL;
            let buffer = form.filter(is_large).map(|form| self.buffer(form, from));
            Ok(Expected { id: (from, ticket), buffer: buffer.transpose()? })
        };
        let expected = receives.into_iter().map(expect).collect::<candle_core::Result<Vec<_>>>()?;
        let gates = vec![self.setup.lane.gate()?];
        let mut state = self.state();
        let sends = std::mem::take(&mut state.next_sends);
        state.rounds.push_back(Round { label, sends, expected, receives: Vec::new(), gates });
        self.notify(state);
        Ok(())
    }

    fn buffer(&self, Form { dtype, shape }: Form, from: usize) -> candle_core::Result<Piece> {
        self.setup.lane.buffer(dtype, shape, from)
    }

    /// MPI has announced a tensor that comes by NCCL.
    pub(super) fn announce(&self, header: TensorHeader) {
        let mut state = self.state();
        state.coming.push((header.from, header.ticket()));
        state.announced.push(header);
        self.notify(state);
    }

    /// A tensor came by MPI: the round that it is of need not wait for it.
    pub(super) fn came_by_mpi(&self, from: usize, ticket: Ticket) {
        let mut state = self.state();
        state.came_by_mpi.push((from, ticket));
        self.notify(state);
    }

    /// Whether a tensor was announced that is not delivered.
    pub(super) fn is_coming(&self, from: usize, ticket: Ticket) -> bool {
        self.state().coming.contains(&(from, ticket))
    }

    /// Sets the clique's unique id, as another process has sent it.
    pub(super) fn set_clique_id(&self, id: &[u8]) {
        let mut state = self.state();
        state.clique_id = Id::of(id);
        self.notify(state);
    }

    /// The run has ended here.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        self.notify(state);
    }

    /// Wakes NCCL's thread.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        state.is_new = true;
        self.wake.notify_all();
    }

    /// Blocks until all that was posted has been sent and received: on a GPU, what was received until now is in memory then.
    pub(super) fn settle(&self) -> Result<()> {
        let mut state = self.state();
        loop {
            if let Some(why) = &state.failed {
                return Err(Error::Engine { why: why.as_str().into() });
            }
            let are_submitted = state.rounds.is_empty();
            if are_submitted && state.under_way == 0 {
                return Ok(());
            }
            drop(state);
            if let Some(group) = self.group() {
                // Until all is submitted, the host waits for what others post.
                let goes_on = if are_submitted { Group::computes } else { Group::running };
                goes_on(&group, self.rank)?;
            }
            state = self.state();
            self.wake.wait_for(&mut state, CHECK);
        }
    }

    /// Sets how many rounds are under way and which ranks the device waits for, and wakes whoever waits for the end of rounds.
    pub(super) fn set_under_way(&self, under_way: usize, awaited: &[usize]) {
        let mut state = self.state();
        if state.awaited != awaited {
            state.awaited = awaited.to_vec();
        }
        if std::mem::replace(&mut state.under_way, under_way) > under_way {
            self.wake.notify_all();
        }
    }

    /// The next round to submit: `None` until all that it receives was announced. Rounds of which all goes by MPI are skipped.
    pub(super) fn next(&self) -> candle_core::Result<Option<Round>> {
        loop {
            let mut state = self.state();
            let Some(mut round) = state.rounds.pop_front() else { return Ok(None) };
            let announced = state.take_announced(&mut round.expected);
            if !round.expected.is_empty() {
                round.receives.extend(self.buffers(announced, &mut round.gates)?);
                state.rounds.push_front(round);
                return Ok(None);
            }
            state.under_way += 1;
            drop(state);
            round.receives.extend(self.buffers(announced, &mut round.gates)?);
            if !round.sends.is_empty() || !round.receives.is_empty() {
                return Ok(Some(round));
            }
            // All of it went by MPI.
            self.state().under_way -= 1;
        }
    }

    /// A buffer for each announced tensor: the one made when its receive was posted, if it has the tensor's form.
    fn buffers(
        &self,
        announced: Vec<(TensorHeader, Option<Piece>)>,
        gates: &mut Vec<Gate>,
    ) -> candle_core::Result<Vec<(TensorHeader, Piece)>> {
        let mut is_new = false;
        let mut buffer = |(header, buffer): (TensorHeader, Option<Piece>)| {
            let Some(dtype) = header.dtype() else {
                candle_core::bail!("a dtype of an envelope cannot be read")
            };
            let form = Form { dtype, shape: Shape::from(header.dims.as_slice()) };
            if let Some(buffer) = buffer.filter(|buffer| Form::of(&buffer.tensor) == form) {
                return Ok((header, buffer));
            }
            is_new = true;
            let buffer = || self.buffer(form, header.from);
            let buffer = on_behalf_of(header.to, header.class(), buffer)?;
            Ok((header, buffer))
        };
        let buffers =
            announced.into_iter().map(&mut buffer).collect::<candle_core::Result<Vec<_>>>()?;
        if is_new {
            // The device may still use the memory for what it held before: the round waits for all that was started until now.
            gates.push(self.setup.lane.gate()?);
        }
        Ok(buffers)
    }

    /// Delivers what a round receives, to be read after `mark`, and counts what it sends as sent: the round is on the lane.
    pub(super) fn deliver(
        self: &Arc<Self>,
        round: Round,
        mark: &Arc<dyn Mark>,
        passes: &mut Passes,
    ) {
        let Some(group) = self.group() else { return };
        for (header, piece) in round.receives {
            let (ticket, label) = (header.ticket(), header.label(passes));
            let (transfers, mark) = (self.clone(), mark.clone());
            let after: threads::After =
                Box::new(move |tensor| transfers.order_after(&mark).map(|()| tensor));
            let after = Some(after);
            group.deliver(
                header.from,
                header.to,
                threads::Message { ticket, label, tensor: piece.tensor, after },
            );
            self.state().coming.retain(|id| *id != (header.from, ticket));
        }
        let mut state = self.state();
        // Those that nobody waited for.
        state.sent.retain(|(_, mark)| !matches!(mark.is_over(), Ok(true)));
        state.sent.extend(round.sends.iter().map(|(id, _)| (*id, mark.clone())));
        drop(state);
        for ((to, ticket), _) in round.sends {
            group.has_sent(self.rank, to, ticket);
        }
    }

    /// Orders what is computed from now on after a transfer.
    fn order_after(&self, mark: &Arc<dyn Mark>) -> Result<()> {
        let group = self.group();
        let running = || group.as_ref().map_or(Ok(()), |group| group.running(self.rank));
        // Asked where the host is the device, and waits here.
        let computes = || group.as_ref().map_or(Ok(()), |group| group.computes(self.rank));
        let ordered =
            mark.precede_computing(&|| computes().is_err() || self.state().failed.is_some());
        // If the run has ended, its error comes first: it says which rank failed.
        running()?;
        let failed = self.state().failed.clone();
        match (failed, ordered) {
            (Some(why), _) => Err(Error::Engine { why: why.into() }),
            (None, Err(error)) => Err(Error::Engine { why: error.to_string().into() }),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Orders what is computed from now on after the send of a message: the sender may then write over the tensor.
    pub(super) fn wait_to_leave(&self, id: MessageId) -> Result<()> {
        let mut state = self.state();
        let found = state.sent.iter().position(|(one, _)| *one == id);
        let found = found.map(|index| state.sent.swap_remove(index));
        drop(state);
        found.map_or(Ok(()), |(_, mark)| self.order_after(&mark))
    }

    /// Nothing is sent or received any more, and what is under way is given up.
    pub(super) fn give_up(&self, why: &str) {
        let mut state = self.state();
        state.failed.get_or_insert_with(|| why.to_owned());
        self.notify(state);
    }

    /// Gives up what is under way, and ends the run on all ranks.
    pub(super) fn fail(&self, why: &str) {
        self.give_up(why);
        if let Some(group) = self.group() {
            group.lose(why.to_owned());
        }
    }
}

impl State {
    /// Takes out of `expected` what was announced, with its buffer, and what came by MPI.
    fn take_announced(
        &mut self,
        expected: &mut Vec<Expected>,
    ) -> Vec<(TensorHeader, Option<Piece>)> {
        let mut announced = Vec::new();
        expected.retain_mut(|one| {
            if let Some(index) = self.came_by_mpi.iter().position(|id| *id == one.id) {
                self.came_by_mpi.swap_remove(index);
                return false;
            }
            let is_it = |header: &TensorHeader| (header.from, header.ticket()) == one.id;
            let Some(index) = self.announced.iter().position(is_it) else { return true };
            announced.push((self.announced.remove(index), one.buffer.take()));
            false
        });
        announced
    }
}

impl Round {
    /// The ranks that the round sends to or receives from, in order.
    pub(super) fn peers(&self) -> Vec<usize> {
        let receives = self.receives.iter().map(|(header, _)| header.from);
        let mut peers: Vec<usize> =
            self.sends.iter().map(|((to, _), _)| *to).chain(receives).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// The round as it is submitted to NCCL. Both of two ranks have the messages between them in the order in which they were posted.
    pub(super) fn transfers(&mut self) -> Transfers {
        // Announcements come in any order.
        self.receives.sort_by_key(|(header, _)| (header.from, header.ticket().number));
        Transfers {
            gates: std::mem::take(&mut self.gates),
            sends: self.sends.iter().map(|(_, piece)| piece.clone()).collect(),
            receives: self.receives.iter().map(|(_, piece)| piece.clone()).collect(),
        }
    }
}
