//! Waiting for a rank, and whose wait fails when it stands still.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::group::Group;
use super::mail::{Parcel, Ticket, lock};
use super::patience::Patience;
use crate::{Error, Form, Label, Result, Watching};

/// Whom a rank waits for.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) peer: usize,
    /// How far the program of the rank that waits has come: exchanges so far, then the time.
    pub(super) place: (u64, Instant),
}

/// A tensor that a rank waits for.
#[derive(Clone)]
pub(super) struct Due {
    pub(super) rank: usize,
    pub(super) peer: usize,
    pub(super) label: Label,
    pub(super) ticket: Ticket,
    /// What it must be, where that is known.
    pub(super) form: Option<Form>,
}

impl Group {
    /// `rank` begins to wait for `peer`; how far it is itself is its place among those that wait.
    pub(super) fn begins_to_wait(&self, rank: usize, peer: usize, now: Instant) {
        let place = (self.ranks[rank].exchanges.load(Ordering::Relaxed), now);
        lock(&self.waits)[rank] = Some(Wait { peer, place });
        if let Some(log) = &self.home.log {
            log.waits(rank, Some(peer));
        }
        // A rank here that itself waits for another process has woken it.
        if !self.is_here(peer) {
            self.wake();
        }
    }

    /// Whether what is `due` is on its way, whatever has become of its peer.
    pub(super) fn is_coming(&self, due: &Due) -> bool {
        let carrier = self.home.carrier.as_ref();
        carrier.is_some_and(|carrier| carrier.is_coming(due.peer, due.ticket))
    }

    /// Whether the wait of `rank` is the one that fails when its peer stands still. A rank that
    /// waits stands still through no fault of its own: whoever waits for it leaves the failing to
    /// it. Of several that wait for a rank that does not, and of a circle of waits, that one fails
    /// whose program has come least far: the others are there because it never got what it waits
    /// for.
    fn answers(&self, rank: usize) -> bool {
        let waits = self.waits(Instant::now());
        let place = |rank: usize| waits[rank].map(|wait| (wait.place, rank));
        let (Some(own), mut least) = (waits[rank], place(rank)) else { return false };
        let mut at = own.peer;
        // A walk longer than the world runs in a circle that `rank` is not in.
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
    pub(super) fn open(&self, parcel: Parcel) -> Result<Tensor> {
        let Due { rank, peer, label, .. } = *self;
        if parcel.label != label {
            return Err(Error::Order { rank, peer, label, theirs: Box::new(parcel.label) });
        }
        let found = Form::of(&parcel.tensor);
        match &self.form {
            Some(wanted) if *wanted != found => {
                let (found, wanted) = (Box::new(found), Box::new(wanted.clone()));
                Err(Error::Form { rank, peer, label, found, wanted })
            }
            _ => match parcel.after {
                Some(after) => after(parcel.tensor),
                None => Ok(parcel.tensor),
            },
        }
    }
}

/// A wait and its deadline, which starts anew whenever the awaited rank moves.
pub(super) struct Watch<'a> {
    group: &'a Group,
    rank: usize,
    peer: usize,
    label: Label,
    pub(super) patience: Patience,
    seen: u64,
}

impl<'a> Watch<'a> {
    /// `rank` begins to wait for `peer`.
    pub(super) fn new(group: &'a Group, rank: usize, peer: usize, label: Label) -> Watch<'a> {
        let (seen, now) = (group.operations(peer), Instant::now());
        group.begins_to_wait(rank, peer, now);
        Watch { group, rank, peer, label, patience: Patience::new(group.deadline, now), seen }
    }

    pub(super) fn look(&mut self, now: Instant) -> Result<()> {
        self.patience.look(now);
        let answers = self.patience.is_over() && self.group.answers(self.rank);
        // Read last: a rank counts an arrival before it stops waiting, so one that has just woken
        // is not taken for one that stands still.
        let operations = self.group.operations(self.peer);
        if operations != self.seen {
            self.seen = operations;
            self.patience.moved();
        } else if answers {
            let Watch { rank, peer, label, .. } = *self;
            return Err(Error::Deadline { rank, peer, label, waited: self.patience.waited() });
        }
        Ok(())
    }
}

/// A wait outside of calls: over when it is dropped. One that failed stays, as in calls: the others leave it the time to say so.
pub(super) struct Outside<'a> {
    watch: Watch<'a>,
    has_failed: bool,
}

impl<'a> Outside<'a> {
    pub(super) fn new(watch: Watch<'a>) -> Outside<'a> {
        Outside { watch, has_failed: false }
    }
}

impl Watching for Outside<'_> {
    fn slice(&self) -> Duration {
        self.watch.patience.slice()
    }
    fn look(&mut self) -> Result<()> {
        self.watch.look(Instant::now()).inspect_err(|_| self.has_failed = true)
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        if !self.has_failed {
            self.watch.group.wait_is_over(self.watch.rank);
        }
    }
}
