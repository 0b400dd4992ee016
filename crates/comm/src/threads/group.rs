//! What the ranks of one run share: their mail, who lives, who waits for whom, who failed first.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::Options;
use super::home::Home;
use super::mail::{After, Mailbox, Parcel, Ticket, lock};
use super::watch::{Due, Wait, Watch};
use crate::{Error, Label, Result, payload};

/// The shared state. Ranks are those of the world, in every group split from it.
pub(crate) struct Group {
    pub(super) home: Home,
    pub(super) began: Instant,
    pub(super) deadline: Duration,
    stop: Arc<AtomicBool>,
    /// Who was asked is known.
    asked: AtomicBool,
    /// Who failed first.
    first: OnceLock<(usize, Instant)>,
    /// Why nothing goes between processes any more.
    lost: OnceLock<String>,
    pub(super) ranks: Vec<Life>,
    /// Whom each rank waits for. A wait that failed stays until its rank posts again, so that the
    /// others leave it the time to say so.
    pub(super) waits: Mutex<Vec<Option<Wait>>>,
    /// From a to b, which is here, at `(b - here.start) * world + a`.
    mail: Vec<Mailbox>,
    /// How many groups were named.
    groups: AtomicU64,
    /// When it was looked last at what arrives, in milliseconds since the group began.
    pub(super) looked_at: AtomicU64,
}

/// How much longer than the deadline ranks may go on after one has failed.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes of a tensor at most that another process takes when it comes: a sender waits for nobody, and the receiver has room for it.
pub(crate) const SMALL: u64 = 4096;

/// What the others can see of a rank.
#[derive(Default)]
pub(super) struct Life {
    /// Grows with every call, arrival and [`crate::Communicator::progress`].
    pub(super) operations: AtomicU64,
    /// Of a rank elsewhere: what its process said of them last, and when, in milliseconds since the group began.
    pub(super) heard: AtomicU64,
    pub(super) heard_at: AtomicU64,
    /// How many exchanges it has posted.
    pub(super) exchanges: AtomicU64,
    /// Its program has returned.
    pub(super) left: AtomicBool,
    /// It goes on though the run is to stop.
    holds_on: AtomicBool,
}

impl Group {
    pub(crate) fn new(options: &Options, home: Home) -> Arc<Group> {
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
            mail: (0..home.here.len() * world).map(|_| Mailbox::default()).collect(),
            home,
            groups: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
        })
    }

    pub(crate) fn world(&self) -> usize {
        self.ranks.len()
    }

    /// A name that no other group of ranks has.
    pub(super) fn name(&self) -> u64 {
        let [process, processes] = self.home.process;
        self.groups.fetch_add(1, Ordering::Relaxed) * processes + process
    }

    /// The ranks that are threads of this process.
    pub(crate) fn here(&self) -> Range<usize> {
        self.home.here.clone()
    }

    /// `rank` has failed. Whoever learns of an end learns it from here, so what comes second is a
    /// consequence.
    pub(crate) fn fail(&self, rank: usize) {
        // A second failure changes nothing.
        let is_first = self.first.set((rank, Instant::now())).is_ok();
        let own = is_first && self.home.here.contains(&rank);
        if let Some(carrier) = self.home.carrier.as_ref().filter(|_| own) {
            carrier.failed(rank);
        }
    }

    /// The engine between processes cannot go on, for this reason.
    pub(crate) fn lose(&self, why: String) {
        // The first reason counts.
        let _ = self.lost.set(why);
    }

    /// Whether it cannot.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Who failed first.
    pub(crate) fn first(&self) -> Option<usize> {
        self.first.get().map(|(rank, _)| *rank)
    }

    /// Whether a rank has failed so long ago, and no rank here moved since `moved`, that those here which go on are stuck.
    pub(crate) fn has_ended_before(&self, moved: Instant) -> bool {
        self.first
            .get()
            .is_some_and(|(_, since)| (*since).max(moved).elapsed() > self.deadline + GRACE)
    }

    /// `rank` has done all it was to do.
    pub(super) fn leave(&self, rank: usize) {
        self.has_left(rank);
        if let Some(log) = &self.home.log {
            log.left(rank);
        }
        if let Some(carrier) = &self.home.carrier {
            // Others learn first why: a rank that has left is else one that made other calls.
            if self.is_to_stop() {
                carrier.stopped();
            }
            carrier.left(rank);
        }
    }

    /// The same of a rank anywhere.
    pub(crate) fn has_left(&self, rank: usize) {
        self.wait_is_over(rank);
        self.ranks[rank].left.store(true, Ordering::Release);
    }

    /// A rank elsewhere shows that it is alive by what arrives from it.
    pub(crate) fn moves(&self, rank: usize) {
        if let Some(life) = self.ranks.get(rank) {
            life.operations.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Something arrived from a process.
    pub(crate) fn is_heard_of(&self, process: usize) {
        if self.home.of_processes {
            self.moves(process);
        }
    }

    /// Whether a rank here may be sent what `ticket` names: it has posted its receive, or will post none any more.
    pub(crate) fn may_come(&self, from: usize, to: usize, ticket: Ticket) -> bool {
        if from >= self.world() || !self.home.here.contains(&to) {
            return true;
        }
        self.left(to) || self.mailbox(from, to).may_come(ticket)
    }

    /// What a rank here sent has left this process, or is asked for by its receiver here.
    pub(crate) fn has_sent(&self, from: usize, to: usize, ticket: Ticket) {
        self.mailbox(to, from).has_left(ticket);
    }

    /// What arrived for a rank here.
    pub(crate) fn deliver(&self, from: usize, to: usize, parcel: Parcel) {
        if from < self.world() && self.home.here.contains(&to) {
            self.moves(from);
            self.mailbox(from, to).put(parcel);
        }
    }

    /// Whether a rank here waits for another.
    pub(crate) fn is_waiting(&self) -> bool {
        let waits = lock(&self.waits);
        self.home.here.clone().any(|rank| waits[rank].is_some())
    }

    /// Whether all ranks here wait for others, or have left.
    pub(crate) fn are_all_waiting(&self) -> bool {
        let waits = lock(&self.waits);
        self.home.here.clone().all(|rank| waits[rank].is_some() || self.left(rank))
    }

    /// Whether the run is to stop.
    pub(crate) fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The run is to stop, as another process says.
    pub(crate) fn stop(&self) {
        // Where this process was asked first, that it is told so again says nothing.
        if !self.stop.swap(true, Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    /// `rank` is alive; is the run?
    pub(super) fn progress(&self, rank: usize) -> Result<()> {
        self.ranks[rank].operations.fetch_add(1, Ordering::AcqRel);
        self.running(rank)
    }

    /// `rank` goes on though the run is to stop, or does not any more.
    pub(super) fn hold_on(&self, rank: usize, on: bool) {
        self.ranks[rank].holds_on.store(on, Ordering::Relaxed);
    }

    /// `rank` is here, whatever it does.
    pub(super) fn note(&self, rank: usize, label: Label) {
        if let Some(log) = &self.home.log {
            log.at(rank, label);
        }
    }

    /// `rank` posts an exchange.
    pub(super) fn post(&self, rank: usize, label: Label) -> Result<()> {
        self.note(rank, label);
        self.ranks[rank].exchanges.fetch_add(1, Ordering::Relaxed);
        self.wait_is_over(rank);
        self.progress(rank)
    }

    /// Whether it is to be waited for until what is sent has left.
    pub(super) fn send(&self, from: usize, to: usize, mut parcel: Parcel) -> Result<bool> {
        if let Some(between) = self.home.between.as_ref().filter(|_| self.is_here(to)) {
            let copied = between.send(from, to, &parcel.tensor)?;
            parcel.after = copied.map(|copied| -> After { Box::new(|_| Ok(copied()?)) });
        }
        let Some(carrier) = &self.home.carrier else {
            self.mailbox(from, to).put(parcel);
            return Ok(false);
        };
        let (ticket, is_large) = (parcel.ticket, payload::size(&parcel.tensor) > SMALL);
        if is_large {
            self.mailbox(to, from).leaves(ticket);
        }
        if !self.is_here(to) {
            carrier.send(from, to, parcel)?;
        } else if self.mailbox(from, to).put(parcel) {
            self.has_sent(from, to, ticket);
        }
        Ok(is_large)
    }

    /// An exchange was posted: what was sent, and these.
    pub(super) fn posted(&self, label: Label, dues: &VecDeque<Due>) -> Result<()> {
        let Some(carrier) = &self.home.carrier else { return Ok(()) };
        let elsewhere = dues.iter().filter(|due| !self.is_here(due.peer));
        let receives = elsewhere.map(|due| (due.peer, due.ticket, due.form.clone())).collect();
        Ok(carrier.posted(label, receives)?)
    }

    /// A receive of what is `due` was posted; whether it comes from another process.
    ///
    /// Where there are several, a sender waits for this within its process, too: what it sends on may have come from another process,
    /// into memory of its own, and a rank far ahead of its neighbour would hold many of those. Where all are threads nothing that is
    /// sent takes memory.
    pub(super) fn ask(&self, due: &Due) -> bool {
        if self.home.carrier.is_none() {
            return false;
        }
        self.mailbox(due.peer, due.rank).ask(due.ticket);
        let is_here = self.is_here(due.peer);
        if is_here {
            self.has_sent(due.peer, due.rank, due.ticket);
        }
        !is_here
    }

    /// Has other processes looked for at once: receives were posted for what they send, or a rank here begins to wait.
    pub(super) fn wake(&self) {
        if let Some(carrier) = &self.home.carrier {
            carrier.wake();
        }
    }

    /// Whether its program has returned.
    fn left(&self, rank: usize) -> bool {
        self.ranks[rank].left.load(Ordering::Acquire)
    }

    pub(super) fn is_here(&self, rank: usize) -> bool {
        self.home.here.contains(&rank)
    }

    /// What is `due` is not wanted any more.
    pub(super) fn refuse(&self, due: &Due) {
        self.mailbox(due.peer, due.rank).refuse(due.ticket);
    }

    /// Blocks until what is `due` is here.
    pub(super) fn receive(&self, due: &Due) -> Result<Tensor> {
        let mailbox = self.mailbox(due.peer, due.rank);
        due.open(self.wait(due, |time| mailbox.take(due.ticket, time), true)?)
    }

    /// Blocks until what `sent` names has left: until its peer has posted the receive, that is, and the bytes are gone.
    pub(super) fn wait_to_leave(&self, sent: &Due) -> Result<()> {
        let mailbox = self.mailbox(sent.peer, sent.rank);
        // What is sent to a process leaves though its rank has left: that takes it for nobody.
        let is_over = || self.is_here(sent.peer) && self.left(sent.peer);
        let done = |time| (mailbox.leaves_within(sent.ticket, time) || is_over()).then_some(());
        self.wait(sent, done, false)?;
        let carrier = self.home.carrier.as_ref().filter(|_| !self.is_here(sent.peer));
        carrier.map_or(Ok(()), |carrier| carrier.wait_to_leave(sent.peer, sent.ticket))
    }

    /// Blocks until `done`, which waits for a while itself, says so: it is for the peer of `due` to do something. One that has left
    /// sends nothing any more; what is sent to it leaves all the same.
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
            // Asked before looking: what it sent before it left is here then.
            let left = ends_with_peer && self.left(due.peer) && !self.is_coming(due);
            let time = if left { Duration::ZERO } else { watch.patience.slice() };
            if let Some(done) = done(time) {
                self.progress(due.rank)?;
                self.wait_is_over(due.rank);
                return Ok(done);
            }
            self.running(due.rank)?;
            if left {
                // One that holds on does so no longer than those that it waits for.
                self.asked_to_stop()?;
                let Due { rank, peer, label, .. } = *due;
                return Err(Error::Left { rank, peer, label });
            }
            watch.look(Instant::now())?;
        }
    }

    fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.mail[(to - self.home.here.start) * self.world() + from]
    }

    /// `rank` waits for nobody any more.
    pub(super) fn wait_is_over(&self, rank: usize) {
        if lock(&self.waits)[rank].take().is_some()
            && let Some(log) = &self.home.log
        {
            log.waits(rank, None);
        }
    }

    pub(crate) fn running(&self, rank: usize) -> Result<()> {
        let all_hold_on = || self.home.carrier.as_ref().is_some_and(|carrier| carrier.holds_on());
        let holds_on = || self.ranks[rank].holds_on.load(Ordering::Relaxed) || all_hold_on();
        if self.is_to_stop() && (!holds_on() || self.still_gone().is_some()) {
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
            self.home.log.as_ref().filter(|_| !self.asked.swap(true, Ordering::Relaxed))
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
