//! What the ranks of one run share: their mailboxes, who is alive, who waits for whom, who failed first.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use candle_core::Tensor;
use parking_lot::Mutex;

use super::Options;
use super::local_ranks::LocalRanks;
use super::mail::{After, Mailbox, Message, Ticket};
use super::watch::{Due, Wait, Watch};
use crate::{Error, Label, Result, payload};

/// The shared state. Ranks are those of the world, in every group split from it.
pub(crate) struct Group {
    pub(super) local: LocalRanks,
    pub(super) began: Instant,
    pub(super) deadline: Duration,
    stop: Arc<AtomicBool>,
    /// The flight record of some process says that it was asked to stop.
    asked: AtomicBool,
    /// Who failed first.
    first: OnceLock<(usize, Instant)>,
    /// Why nothing goes between processes any more.
    lost: OnceLock<String>,
    pub(super) ranks: Vec<Life>,
    /// Whom each rank waits for. A wait that failed stays until its rank posts again, so that the
    /// others leave it the time to say so.
    pub(super) waits: Mutex<Vec<Option<Wait>>>,
    /// From rank a to rank b, which is here, at `(b - local.ranks.start) * world + a`.
    mailboxes: Vec<Mailbox>,
    /// How many names were given to groups.
    groups: AtomicU64,
    /// When MPI's thread last polled for arrivals, in milliseconds since the group began.
    pub(super) polled_at: AtomicU64,
}

/// How much longer than the deadline ranks may go on after one has failed.
const GRACE: Duration = Duration::from_secs(1);

/// The most bytes of a tensor that another process receives before the rank there has posted the receive: its sender does not wait for that.
pub(crate) const SMALL: u64 = 4096;

/// What the others can see of a rank.
#[derive(Default)]
pub(super) struct Life {
    /// Grows with every call, arrival and [`crate::Communicator::progress`].
    pub(super) operations: AtomicU64,
    /// Of a rank of another process: its operations in the last heartbeat, and when that came, in milliseconds since the group began.
    pub(super) heard: AtomicU64,
    pub(super) heard_at: AtomicU64,
    /// How many exchanges it has posted.
    pub(super) exchanges: AtomicU64,
    /// Its program has returned.
    pub(super) left: AtomicBool,
    /// It waits for its device, which waits for a transfer: [`crate::Communicator::computes`].
    pub(super) awaits_device: AtomicBool,
    /// It goes on even if the run is to stop: [`crate::Communicator::begin_commit`].
    is_committing: AtomicBool,
}

impl Group {
    pub(crate) fn new(options: &Options, local: LocalRanks) -> Arc<Group> {
        let world = options.world;
        Arc::new(Group {
            began: Instant::now(),
            deadline: options.deadline,
            stop: options.stop.clone(),
            asked: AtomicBool::new(false),
            first: OnceLock::new(),
            lost: OnceLock::new(),
            ranks: (0..world).map(|_| Life::default()).collect(),
            waits: Mutex::new(vec![None; world]),
            mailboxes: (0..local.ranks.len() * world).map(|_| Mailbox::default()).collect(),
            local,
            groups: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
        })
    }

    pub(crate) fn world_size(&self) -> usize {
        self.ranks.len()
    }

    /// A new name, which no other group of ranks has.
    pub(super) fn name(&self) -> u64 {
        let [process, processes] = self.local.process;
        self.groups.fetch_add(1, Ordering::Relaxed) * processes + process
    }

    /// The ranks that are threads of this process.
    pub(crate) fn here(&self) -> Range<usize> {
        self.local.ranks.clone()
    }

    /// `rank` has failed. Ranks learn of an end only from here, so a later failure is a consequence of the first.
    pub(crate) fn fail(&self, rank: usize) {
        // A second failure changes nothing.
        let is_first = self.first.set((rank, Instant::now())).is_ok();
        let own = is_first && self.local.ranks.contains(&rank);
        if let Some(transport) = self.local.transport.as_ref().filter(|_| own) {
            transport.failed(rank);
        }
    }

    /// The engine between processes cannot go on, for this reason.
    pub(crate) fn lose(&self, why: String) {
        // The first reason counts.
        let _ = self.lost.set(why);
    }

    /// Whether the engine between processes cannot go on.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// The rank that failed first.
    pub(crate) fn first(&self) -> Option<usize> {
        self.first.get().map(|(rank, _)| *rank)
    }

    /// Whether ranks here that have not ended are stuck: a rank failed, and ranks here last made progress at `moved`, both longer ago than
    /// the deadline.
    pub(crate) fn has_ended_before(&self, moved: Instant) -> bool {
        self.first
            .get()
            .is_some_and(|(_, since)| (*since).max(moved).elapsed() > self.deadline + GRACE)
    }

    /// The program of `rank`, which is here, has returned.
    pub(super) fn leave(&self, rank: usize) {
        self.has_left(rank);
        if let Some(log) = &self.local.log {
            log.left(rank);
        }
        if let Some(transport) = &self.local.transport {
            // The reason is sent first: otherwise a rank that has left is taken for one that made other calls.
            if self.is_to_stop() {
                transport.stopped();
            }
            transport.left(rank);
        }
    }

    /// The program of `rank`, wherever it is, has returned.
    pub(crate) fn has_left(&self, rank: usize) {
        self.wait_is_over(rank);
        self.ranks[rank].left.store(true, Ordering::Release);
    }

    /// `rank`, of another process, makes progress, as what arrives from it shows.
    pub(crate) fn makes_progress(&self, rank: usize) {
        if let Some(life) = self.ranks.get(rank) {
            life.operations.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Something arrived from a process, which counts as progress where ranks stand for processes.
    pub(crate) fn process_is_alive(&self, process: usize) {
        if self.local.of_processes {
            self.makes_progress(process);
        }
    }

    /// Whether the payload of a message may be received for a rank here: the rank has posted its receive, or will post none any more.
    pub(crate) fn may_receive(&self, from: usize, to: usize, ticket: Ticket) -> bool {
        if from >= self.world_size() || !self.local.ranks.contains(&to) {
            return true;
        }
        self.left(to) || self.mailbox(from, to).may_receive(ticket)
    }

    /// A message of a rank here has left this process or, for a rank here, its receive was posted.
    pub(crate) fn has_sent(&self, from: usize, to: usize, ticket: Ticket) {
        self.mailbox(to, from).has_left(ticket);
    }

    /// Puts a message that has arrived in the mailbox of its rank, which is here.
    pub(crate) fn deliver(&self, from: usize, to: usize, message: Message) {
        if from < self.world_size() && self.local.ranks.contains(&to) {
            self.makes_progress(from);
            self.mailbox(from, to).put(message);
        }
    }

    /// Whether a rank here waits for another.
    pub(crate) fn is_waiting(&self) -> bool {
        let waits = self.waits.lock();
        self.local.ranks.clone().any(|rank| waits[rank].is_some())
    }

    /// Whether all ranks here wait for others, or have left.
    pub(crate) fn are_all_waiting(&self) -> bool {
        let waits = self.waits.lock();
        self.local.ranks.clone().all(|rank| waits[rank].is_some() || self.left(rank))
    }

    /// Whether the run is to stop.
    pub(crate) fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Stops the run, as another process says that it is to stop.
    pub(crate) fn stop(&self) {
        // If this process was asked to stop itself, its flight record is to say so.
        if !self.stop.swap(true, Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    /// Counts progress of `rank`. Fails if the run has ended or is to stop.
    pub(super) fn progress(&self, rank: usize) -> Result<()> {
        self.ranks[rank].operations.fetch_add(1, Ordering::AcqRel);
        self.device_is_over(rank);
        self.running(rank)
    }

    /// Sets whether `rank` goes on even if the run is to stop.
    pub(super) fn set_committing(&self, rank: usize, on: bool) {
        self.ranks[rank].is_committing.store(on, Ordering::Relaxed);
    }

    /// Writes into the flight record that `rank` is at `label`.
    pub(super) fn note(&self, rank: usize, label: Label) {
        if let Some(log) = &self.local.log {
            log.at(rank, label);
        }
    }

    /// Counts an exchange that `rank` posts.
    pub(super) fn post(&self, rank: usize, label: Label) -> Result<()> {
        self.note(rank, label);
        self.ranks[rank].exchanges.fetch_add(1, Ordering::Relaxed);
        self.wait_is_over(rank);
        self.progress(rank)
    }

    /// Sends a message of rank `from`, which is here. Returns whether the sender must wait until it has left.
    pub(super) fn send(&self, from: usize, to: usize, mut message: Message) -> Result<bool> {
        if let Some(device_copy) = self.local.device_copy.as_ref().filter(|_| self.is_here(to)) {
            let copied = device_copy.send(from, to, &message.tensor)?;
            message.after = copied.map(|copied| -> After { Box::new(|_| Ok(copied()?)) });
        }
        let Some(transport) = &self.local.transport else {
            self.mailbox(from, to).put(message);
            return Ok(false);
        };
        let (ticket, is_large) = (message.ticket, payload::bytes_of(&message.tensor) > SMALL);
        if is_large {
            self.mailbox(to, from).leaves(ticket);
        }
        if !self.is_here(to) {
            transport.send(from, to, message)?;
        } else if self.mailbox(from, to).put(message) {
            self.has_sent(from, to, ticket);
        }
        Ok(is_large)
    }

    /// Tells the transport that an exchange was posted: what was sent before, and these receives.
    pub(super) fn posted(&self, label: Label, dues: &VecDeque<Due>) -> Result<()> {
        let Some(transport) = &self.local.transport else { return Ok(()) };
        let elsewhere = dues.iter().filter(|due| !self.is_here(due.peer));
        let receives = elsewhere.map(|due| (due.peer, due.ticket, due.form.clone())).collect();
        Ok(transport.posted(label, receives)?)
    }

    /// Notes that the receive of what is `due` was posted. Returns whether it comes from another process.
    ///
    /// Where there are several processes, a sender waits for this note also within its process: a tensor that it forwards may have come
    /// from another process and occupy memory, and a rank far ahead of its neighbour would hold many of them. If all ranks are
    /// threads of one process, tensors that are sent take no memory of their own.
    pub(super) fn ask(&self, due: &Due) -> bool {
        if self.local.transport.is_none() {
            return false;
        }
        self.mailbox(due.peer, due.rank).ask(due.ticket);
        let is_here = self.is_here(due.peer);
        if is_here {
            self.has_sent(due.peer, due.rank, due.ticket);
        }
        !is_here
    }

    /// Wakes MPI's thread to poll at once: receives from other processes were posted, or a rank here begins to wait.
    pub(super) fn wake(&self) {
        if let Some(transport) = &self.local.transport {
            transport.wake();
        }
    }

    /// Whether the program of `rank` has returned.
    fn left(&self, rank: usize) -> bool {
        self.ranks[rank].left.load(Ordering::Acquire)
    }

    pub(super) fn is_here(&self, rank: usize) -> bool {
        self.local.ranks.contains(&rank)
    }

    /// Gives up a receive: its tensor is dropped when it arrives.
    pub(super) fn refuse(&self, due: &Due) {
        self.mailbox(due.peer, due.rank).refuse(due.ticket);
    }

    /// Blocks until the tensor of a posted receive has arrived.
    pub(super) fn receive(&self, due: &Due) -> Result<Tensor> {
        let mailbox = self.mailbox(due.peer, due.rank);
        due.open(self.wait(due, |time| mailbox.take(due.ticket, time), true)?)
    }

    /// Blocks until a send is complete: its peer has posted the receive, and the bytes have left this process.
    pub(super) fn wait_to_leave(&self, sent: &Due) -> Result<()> {
        let mailbox = self.mailbox(sent.peer, sent.rank);
        // Another process receives, and drops, what is sent to a rank whose program has returned. Within this process nobody would.
        let is_over = || self.is_here(sent.peer) && self.left(sent.peer);
        let done = |time| (mailbox.leaves_within(sent.ticket, time) || is_over()).then_some(());
        self.wait(sent, done, false)?;
        let transport = self.local.transport.as_ref().filter(|_| !self.is_here(sent.peer));
        transport.map_or(Ok(()), |transport| transport.wait_to_leave(sent.peer, sent.ticket))
    }

    /// Waits for the peer of `due`: calls `done`, which blocks for at most the time that it is given, until it returns something. With
    /// `ends_with_peer`, as in a receive, it fails if the peer's program has returned.
    fn wait<T>(
        &self,
        due: &Due,
        done: impl Fn(Duration) -> Option<T>,
        ends_with_peer: bool,
    ) -> Result<T> {
        self.progress(due.rank)?;
        if let Some(done) = done(Duration::ZERO) {
            return Ok(done);
        }
        let mut watch = Watch::new(self, due.rank, due.peer, due.label);
        loop {
            // Asked before looking: what the peer sent before its program returned has then arrived.
            let left = ends_with_peer && self.left(due.peer) && !self.is_coming(due);
            let time = if left { Duration::ZERO } else { watch.timer.slice() };
            if let Some(done) = done(time) {
                self.progress(due.rank)?;
                self.wait_is_over(due.rank);
                return Ok(done);
            }
            self.running(due.rank)?;
            if left {
                // A rank that is committing ignores a stop only as long as the ranks that it waits for do.
                self.asked_to_stop()?;
                let Due { rank, peer, label, .. } = *due;
                return Err(Error::Left { rank, peer, label });
            }
            watch.look(Instant::now())?;
        }
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.mailboxes[(to - self.local.ranks.start) * self.world_size() + from]
    }

    /// Fails if `rank` is not to go on: the run has ended or is to stop.
    pub(crate) fn running(&self, rank: usize) -> Result<()> {
        let agrees = || {
            self.local.transport.as_ref().is_some_and(|transport| transport.stops_by_agreement())
        };
        let goes_on = || self.ranks[rank].is_committing.load(Ordering::Relaxed) || agrees();
        if self.is_to_stop() && (!goes_on() || self.still_gone().is_some()) {
            self.asked_to_stop()?;
        }
        if let Some(why) = self.lost.get() {
            return Err(Error::Engine { why: why.as_str().into() });
        }
        self.first().map_or(Ok(()), |rank| Err(Error::Ended { rank }))
    }

    fn asked_to_stop(&self) -> Result<()> {
        if !self.is_to_stop() {
            return Ok(());
        }
        if let Some(log) =
            self.local.log.as_ref().filter(|_| !self.asked.swap(true, Ordering::Relaxed))
        {
            log.asked();
        }
        Err(self.still_gone().map_or(Error::Stopped, |rank| Error::Gone { rank }))
    }

    /// How many operations a rank has done, as far as is known here.
    pub(crate) fn operations(&self, rank: usize) -> u64 {
        self.ranks[rank].operations.load(Ordering::Acquire)
    }
}
