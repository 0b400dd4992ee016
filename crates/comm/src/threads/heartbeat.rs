//! Heartbeats: what processes tell each other of their ranks, that is how far they are and whom they wait for; and which ranks are
//! silent.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::deadline::AWAY;
use super::group::Group;
use super::watch::Wait;

/// How far a rank is, as its process tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    operations: u64,
    exchanges: u64,
    /// Whom it waits for, since which exchange, and for how many milliseconds.
    waits: Option<(usize, u64, u64)>,
}

/// After so long without a heartbeat the last one is not relied on: the process may have been stopped.
const SILENCE: Duration = Duration::from_millis(500);
/// A rank that is silent for so long when this process is asked to stop is taken for dead: a launcher that ends a job for a dead process
/// asks the others to stop a quarter of a second after the death, or later.
const GONE: Duration = Duration::from_millis(200);
/// How often within [`GONE`] a silent rank is checked again.
const CHECKS: u32 = 10;

impl Group {
    /// What the other processes are told of a rank here, at `now`.
    pub(crate) fn heartbeat(&self, rank: usize, now: Instant) -> Heartbeat {
        let waits =
            self.waits.lock()[rank].map(|Wait { peer, place: (exchanges, since), .. }| {
                let waited = now.saturating_duration_since(since).as_millis() as u64;
                (peer, exchanges, waited)
            });
        let exchanges = self.ranks[rank].exchanges.load(Ordering::Relaxed);
        Heartbeat { operations: self.operations(rank), exchanges, waits }
    }

    /// Notes what another process tells of a rank of its own.
    pub(crate) fn note_heartbeat(&self, rank: usize, heartbeat: Heartbeat, now: Instant) {
        let Some(life) = self.ranks.get(rank) else { return };
        self.waits.lock()[rank] = heartbeat.waits.map(|(peer, exchanges, waited)| {
            let since = now.checked_sub(Duration::from_millis(waited)).unwrap_or(now);
            Wait { peer, place: (exchanges, since), of_device: false }
        });
        life.exchanges.store(heartbeat.exchanges, Ordering::Relaxed);
        life.heard_at.store(self.since_it_began(now), Ordering::Release);
        if life.heard.swap(heartbeat.operations, Ordering::AcqRel) != heartbeat.operations {
            self.makes_progress(rank);
        }
    }

    fn since_it_began(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_millis() as u64
    }

    /// Whether no heartbeat of a rank of another process came for `time`: whom it waited for then says nothing of now.
    fn is_silent(&self, rank: usize, time: Duration, now: Instant) -> bool {
        let heard = Duration::from_millis(self.ranks[rank].heard_at.load(Ordering::Acquire));
        !self.local.ranks.contains(&rank) && self.began + heard + time < now
    }

    /// MPI's thread begins to poll at `now`. If it has not for long, heartbeats from before are forgotten: meanwhile the others may have
    /// ended in any order, and the messages that said so may be lost.
    pub(crate) fn begins_to_poll(&self, now: Instant) {
        if self.was_away(now) {
            for life in &self.ranks {
                life.heard_at.store(0, Ordering::Release);
            }
        }
        self.polled_at.store(self.since_it_began(now), Ordering::Release);
    }

    fn was_away(&self, now: Instant) -> bool {
        let looked = Duration::from_millis(self.polled_at.load(Ordering::Acquire));
        self.began + looked + AWAY < now
    }

    /// A rank of another process that has sent a heartbeat, has not left and is silent now; `None` if this process itself was stopped.
    fn gone(&self) -> Option<usize> {
        let now = Instant::now();
        if self.was_away(now) {
            return None;
        }
        let gone = |rank: &usize| {
            let life = &self.ranks[*rank];
            life.heard_at.load(Ordering::Acquire) > 0
                && !life.left.load(Ordering::Acquire)
                && self.is_silent(*rank, GONE, now)
        };
        (0..self.world_size()).find(gone)
    }

    /// A rank that is [`Group::gone`] at every one of several checks: if this process had no core for a while, heartbeats that came
    /// meanwhile are read first.
    pub(super) fn still_gone(&self) -> Option<usize> {
        let mut gone = self.gone();
        for _ in 0..CHECKS {
            if gone.is_none() {
                break;
            }
            std::thread::sleep(GONE / CHECKS);
            gone = self.gone();
        }
        gone
    }

    /// Whom each rank waits for, as far as that can be relied on.
    pub(super) fn waits(&self, now: Instant) -> Vec<Option<Wait>> {
        let mut waits = self.waits.lock().clone();
        for (rank, wait) in waits.iter_mut().enumerate() {
            *wait = wait.filter(|_| !self.is_silent(rank, SILENCE, now));
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Options;
    use super::super::local_ranks::LocalRanks;
    use super::*;

    /// Rank 0 of two, each in a process of its own, as if it had begun a while ago.
    fn group(ago: Duration) -> Group {
        let options = Options { world: 2, deadline: Duration::from_secs(1), stop: Arc::default() };
        let group = Group::new(&options, LocalRanks { ranks: 0..1, ..LocalRanks::all(2) });
        let mut group = Arc::into_inner(group).unwrap();
        group.began = group.began.checked_sub(ago).unwrap();
        group
    }

    #[test]
    fn a_silent_rank_is_gone_unless_this_process_was_stopped() {
        let heartbeat = Heartbeat { operations: 1, exchanges: 1, waits: Some((0, 1, 0)) };
        let ago = Duration::from_secs(10);
        for (silent, unpolled, gone) in
            [(50, 0, None), (300, 0, Some(1)), (300, 100, Some(1)), (3000, 2900, None)]
        {
            let found = || {
                let (group, now) = (group(ago), Instant::now());
                let before =
                    |milliseconds| now.checked_sub(Duration::from_millis(milliseconds)).unwrap();
                group.begins_to_poll(before(silent));
                group.note_heartbeat(1, heartbeat, before(silent));
                group.begins_to_poll(before(unpolled));
                let first = group.gone();
                // It polls again, and nothing comes.
                group.begins_to_poll(Instant::now());
                // Anew where this took so long that the silence is another.
                let second = group.gone();
                (now.elapsed() < Duration::from_millis(50)).then_some([first, second])
            };
            let found = (0..100).find_map(|_| found()).expect("a core for a moment");
            assert_eq!(found, [gone; 2], "{silent} ms silent, {unpolled} ms away");
        }
    }

    #[test]
    fn heartbeats_from_before_a_pause_are_not_relied_on() {
        let (group, now) = (group(Duration::from_secs(10)), Instant::now());
        let heartbeat = Heartbeat { operations: 1, exchanges: 1, waits: Some((0, 1, 0)) };
        group.begins_to_poll(now);
        group.note_heartbeat(1, heartbeat, now);
        assert!(group.waits(now)[1].is_some());
        let later = now + Duration::from_secs(2);
        group.begins_to_poll(later);
        assert!(group.waits(later)[1].is_none());
        group.note_heartbeat(1, heartbeat, later);
        assert!(group.waits(later)[1].is_some());
    }
}
