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
    /// It waits for its device, which waits for a transfer with the peer.
    pub(super) of_device: bool,
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
        self.waits.lock()[rank] = Some(Wait { peer, place, of_device: false });
        self.has_begun_to_wait(rank, peer);
    }

    fn has_begun_to_wait(&self, rank: usize, peer: usize) {
        if let Some(log) = &self.local.log {
            log.waits(rank, Some(peer));
        }
        // If the peer is here and waits for another process, it has woken MPI's thread itself.
        if !self.is_here(peer) {
            self.wake();
        }
    }

    /// Notes that `rank` waits for nobody any more.
    pub(super) fn wait_is_over(&self, rank: usize) {
        if self.waits.lock()[rank].take().is_some()
            && let Some(log) = &self.local.log
        {
            log.waits(rank, None);
        }
    }

    /// Notes that `rank` waits for its device. That counts as progress, unless the device itself waits for a transfer: then `rank` counts
    /// as waiting for the rank at the other end, of several for one that itself waits for nobody.
    pub(crate) fn computes(&self, rank: usize) -> Result<()> {
        let now = Instant::now();
        let (waits, awaited) = (self.waits(now), self.awaited());
        // A call that was made meanwhile has noted whom the rank waits for.
        if waits[rank].is_some_and(|wait| !wait.of_device) {
            return self.running(rank);
        }
        let blamed = awaited.iter().find(|peer| waits[**peer].is_none()).or(awaited.first());
        let Some(&peer) = blamed else { return self.progress(rank) };
        let place = (self.ranks[rank].exchanges.load(Ordering::Relaxed), now);
        let mut waits = self.waits.lock();
        if waits[rank].is_none() {
            // Set first: a call that takes it back waits for the lock.
            self.ranks[rank].awaits_device.store(true, Ordering::Relaxed);
            waits[rank] = Some(Wait { peer, place, of_device: true });
            drop(waits);
            self.has_begun_to_wait(rank, peer);
        } else {
            drop(waits);
        }
        self.running(rank)
    }

    /// Ends what [`Group::computes`] noted, if anything; a wait that a call has begun meanwhile is its own.
    pub(super) fn device_is_over(&self, rank: usize) {
        let awaits_device = &self.ranks[rank].awaits_device;
        if !awaits_device.load(Ordering::Relaxed) || !awaits_device.swap(false, Ordering::Relaxed) {
            return;
        }
        let is_over = self.waits.lock()[rank].take_if(|wait| wait.of_device).is_some();
        if let Some(log) = self.local.log.as_ref().filter(|_| is_over) {
            log.waits(rank, None);
        }
    }

    /// The ranks at the other end of the transfer that the device of this process waits for.
    pub(crate) fn awaited(&self) -> Vec<usize> {
        self.local.transport.as_ref().map_or(Vec::new(), |transport| transport.awaited())
    }

    /// How many operations have been done by `ranks`, by those that they wait for, and so on, as far as is known here.
    pub(crate) fn operations_behind(&self, ranks: &[usize]) -> Vec<(usize, u64)> {
        let (waits, mut behind) = (self.waits(Instant::now()), ranks.to_vec());
        let mut at = 0;
        while let Some(rank) = behind.get(at) {
            let wait = waits[*rank].filter(|wait| !behind.contains(&wait.peer));
            behind.extend(wait.map(|wait| wait.peer));
            at += 1;
        }
        behind.into_iter().map(|rank| (rank, self.operations(rank))).collect()
    }

    /// Whether the tensor of a posted receive is on its way, even if the sender's program has returned.
    pub(super) fn is_coming(&self, due: &Due) -> bool {
        let transport = self.local.transport.as_ref();
        transport.is_some_and(|transport| transport.is_coming(due.peer, due.ticket))
    }

    /// Whether the wait of `rank` is the one to fail when its peer makes no progress. A wait for a rank that itself waits does not fail,
    /// because that rank is not at fault. Of several ranks that wait for a rank that does not wait, and in a deadlock (a cycle of waits), the
    /// one that is furthest behind in its program fails: the others wait because it never got what it waits for.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::super::local_ranks::{LocalRanks, Transport};
    use super::super::{Heartbeat, Options};
    use super::*;

    /// A transport whose device waits for a transfer with these ranks.
    struct Awaiting(Arc<Mutex<Vec<usize>>>);

    impl Transport for Awaiting {
        fn send(&self, _: usize, _: usize, _: Message) -> candle_core::Result<()> {
            Ok(())
        }
        fn posted(
            &self,
            _: Label,
            _: Vec<(usize, Ticket, Option<Form>)>,
        ) -> candle_core::Result<()> {
            Ok(())
        }
        fn is_coming(&self, _: usize, _: Ticket) -> bool {
            false
        }
        fn wait_to_leave(&self, _: usize, _: Ticket) -> Result<()> {
            Ok(())
        }
        fn awaited(&self) -> Vec<usize> {
            self.0.lock().clone()
        }
        fn stops_by_agreement(&self) -> bool {
            true
        }
        fn wake(&self) {}
        fn failed(&self, _: usize) {}
        fn left(&self, _: usize) {}
        fn stopped(&self) {}
    }

    /// Rank 0 of four, each in a process of its own, and what its device waits for.
    fn group() -> (Arc<Group>, Arc<Mutex<Vec<usize>>>) {
        let options = Options { world: 4, deadline: Duration::from_secs(1), stop: Arc::default() };
        let awaited = Arc::new(Mutex::new(Vec::new()));
        let transport: Arc<dyn Transport> = Arc::new(Awaiting(awaited.clone()));
        let all = LocalRanks::all(4);
        let local = LocalRanks { ranks: 0..1, transport: Some(transport), ..all };
        (Group::new(&options, local), awaited)
    }

    fn waits_for(group: &Group, rank: usize) -> Option<usize> {
        group.waits(Instant::now())[rank].map(|wait| wait.peer)
    }

    fn hear(group: &Group, rank: usize, heartbeat: &str) {
        let heartbeat: Heartbeat = serde_json::from_str(heartbeat).unwrap();
        group.note_heartbeat(rank, heartbeat, Instant::now());
    }

    #[test]
    fn who_waits_for_his_device_is_alive_unless_it_waits_for_a_transfer() {
        let (group, awaited) = group();
        group.computes(0).unwrap();
        assert_eq!((group.operations(0), waits_for(&group, 0)), (1, None));
        *awaited.lock() = vec![1, 2];
        group.computes(0).unwrap();
        assert_eq!((group.operations(0), waits_for(&group, 0)), (1, Some(1)));
        // The host goes on.
        group.progress(0).unwrap();
        assert_eq!((group.operations(0), waits_for(&group, 0)), (2, None));
        // The one that waits itself is not at fault.
        hear(&group, 1, r#"{"operations":1,"exchanges":1,"waits":[3,1,0]}"#);
        group.computes(0).unwrap();
        assert_eq!(waits_for(&group, 0), Some(2));
        awaited.lock().clear();
        group.computes(0).unwrap();
        assert_eq!((group.operations(0), waits_for(&group, 0)), (3, None));
        // A wait in a call stays.
        group.begins_to_wait(0, 3, Instant::now());
        *awaited.lock() = vec![1];
        group.computes(0).unwrap();
        assert_eq!((group.operations(0), waits_for(&group, 0)), (3, Some(3)));
    }

    #[test]
    fn behind_a_rank_are_those_that_it_waits_for() {
        let (group, _) = group();
        let counted = |ranks: &[usize]| -> Vec<usize> {
            group.operations_behind(ranks).into_iter().map(|(rank, _)| rank).collect()
        };
        assert_eq!(counted(&[1]), [1]);
        hear(&group, 1, r#"{"operations":1,"exchanges":1,"waits":[3,1,0]}"#);
        hear(&group, 3, r#"{"operations":1,"exchanges":1,"waits":[1,1,0]}"#);
        assert_eq!(counted(&[1]), [1, 3]);
        assert_eq!(counted(&[2, 1]), [2, 1, 3]);
        assert_eq!(counted(&[]), [0_usize; 0]);
    }
}
