//! Waiting for a rank, and which of several waits fails when that rank makes no progress.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::deadline::DeadlineTimer;
use super::group::Group;
use super::mail::{Message, Ticket};
use crate::{Error, Form, Label, Result, Watching};

/// Whom a rank waits for.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) peer: usize,
    /// How far the program of the waiting rank has come: exchanges so far, then when it began to wait.
    pub(super) place: (u64, Instant),
}

/// A tensor that a rank waits for.
#[derive(Clone)]
pub(super) struct Due {
    pub(super) rank: usize,
    pub(super) peer: usize,
    pub(super) label: Label,
    pub(super) ticket: Ticket,
    /// The form that it must have, where that is known.
    pub(super) form: Option<Form>,
}

impl Group {
    /// Notes that `rank` begins to wait for `peer`, and how far its own program has come.
    pub(super) fn begins_to_wait(&self, rank: usize, peer: usize, now: Instant) {
        let place = (self.ranks[rank].exchanges.load(Ordering::Relaxed), now);
        self.waits.lock()[rank] = Some(Wait { peer, place });
        if let Some(log) = &self.local.log {
            log.waits(rank, Some(peer));
        }
        // If the peer is here and waits for another process, it has woken MPI's thread itself.
        if !self.is_here(peer) {
            self.wake();
        }
    }

    /// Whether what is `due` is on its way, even if its peer has ended.
    pub(super) fn is_coming(&self, due: &Due) -> bool {
        let transport = self.local.transport.as_ref();
        transport.is_some_and(|transport| transport.is_coming(due.peer, due.ticket))
    }

    /// Whether the wait of `rank` is the one that fails when its peer makes no progress. A rank that itself waits is not at fault, so
    /// a wait for it does not fail. Of several ranks that wait for one that does not wait, and of a cycle of waits, the one fails whose
    /// program has come least far: the others wait because it never got what it waits for.
    fn fails_first(&self, rank: usize) -> bool {
        let waits = self.waits(Instant::now());
        let place = |rank: usize| waits[rank].map(|wait| (wait.place, rank));
        let (Some(own), mut least) = (waits[rank], place(rank)) else { return false };
        let mut at = own.peer;
        // A longer walk is in a cycle that `rank` is not part of.
        for _ in 0..waits.len() {
            if at == rank {
                return least == place(rank);
            }
            let Some(wait) = waits[at] else {
                let here = |rank: &usize| waits[*rank].is_some_and(|wait| wait.peer == at);
                return (0..waits.len()).filter(here).filter_map(place).min() == place(rank);
            };
            least = least.min(place(at));
            at = wait.peer;
        }
        false
    }
}

impl Due {
    /// The tensor of a message, which must have the label and the form that are due.
    pub(super) fn open(&self, message: Message) -> Result<Tensor> {
        let Due { rank, peer, label, .. } = *self;
        if message.label != label {
            return Err(Error::Order { rank, peer, label, theirs: Box::new(message.label) });
        }
        let found = Form::of(&message.tensor);
        match &self.form {
            Some(wanted) if *wanted != found => {
                let (found, wanted) = (Box::new(found), Box::new(wanted.clone()));
                Err(Error::Form { rank, peer, label, found, wanted })
            }
            _ => match message.after {
                Some(after) => after(message.tensor),
                None => Ok(message.tensor),
            },
        }
    }
}

/// A wait and its deadline, which starts anew whenever the awaited rank makes progress.
pub(super) struct Watch<'a> {
    group: &'a Group,
    rank: usize,
    peer: usize,
    label: Label,
    pub(super) timer: DeadlineTimer,
    seen: u64,
}

impl<'a> Watch<'a> {
    /// `rank` begins to wait for `peer`.
    pub(super) fn new(group: &'a Group, rank: usize, peer: usize, label: Label) -> Watch<'a> {
        let (seen, now) = (group.operations(peer), Instant::now());
        group.begins_to_wait(rank, peer, now);
        Watch { group, rank, peer, label, timer: DeadlineTimer::new(group.deadline, now), seen }
    }

    /// Checks at `now` whether the peer has made progress.
    ///
    /// # Errors
    /// [`Error::Deadline`], if it made none for the whole deadline and this wait is the one that fails.
    pub(super) fn look(&mut self, now: Instant) -> Result<()> {
        self.timer.check(now);
        let fails = self.timer.has_expired() && self.group.fails_first(self.rank);
        // Read last: a rank counts an arrival before it stops waiting, so one that has just woken
        // is not taken for one that makes no progress.
        let operations = self.group.operations(self.peer);
        if operations != self.seen {
            self.seen = operations;
            self.timer.restart();
        } else if fails {
            let Watch { rank, peer, label, .. } = *self;
            return Err(Error::Deadline { rank, peer, label, waited: self.timer.waited() });
        }
        Ok(())
    }
}

/// A wait outside of calls, which is over when this is dropped. One that failed stays noted, as in calls, so that others do not fail
/// before it is reported.
pub(super) struct OutsideWait<'a> {
    watch: Watch<'a>,
    has_failed: bool,
}

impl<'a> OutsideWait<'a> {
    pub(super) fn new(watch: Watch<'a>) -> OutsideWait<'a> {
        OutsideWait { watch, has_failed: false }
    }
}

impl Watching for OutsideWait<'_> {
    fn slice(&self) -> Duration {
        self.watch.timer.slice()
    }
    fn look(&mut self) -> Result<()> {
        self.watch.look(Instant::now()).inspect_err(|_| self.has_failed = true)
    }
}

impl Drop for OutsideWait<'_> {
    fn drop(&mut self) {
        if !self.has_failed {
            self.watch.group.wait_is_over(self.watch.rank);
        }
    }
}
