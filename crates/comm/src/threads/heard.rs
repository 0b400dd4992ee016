//! What processes hear of each other's ranks: how far they are, whom they wait for, and since when nothing was heard.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::lock;
use super::patience::AWAY;
use super::watch::Wait;

/// How far a rank is, as another process is told.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beat {
    operations: u64,
    exchanges: u64,
    /// Whom it waits for, since which exchange, and for how many milliseconds.
    waits: Option<(usize, u64, u64)>,
}

/// After so long without a word a process is not taken at its last one: it may have been stopped.
const SILENCE: Duration = Duration::from_millis(500);
/// After so long a request to stop is that of a launcher which ends a job for a dead process: it comes a quarter of a second
/// after the death, or later.
const GONE: Duration = Duration::from_millis(200);
/// How often that is looked at.
const LOOKS: u32 = 10;

impl Group {
    /// What others are told of a rank here, at `now`.
    pub(crate) fn beat(&self, rank: usize, now: Instant) -> Beat {
        let waits = lock(&self.waits)[rank].map(|Wait { peer, place: (exchanges, since) }| {
            let waited = now.saturating_duration_since(since).as_millis() as u64;
            (peer, exchanges, waited)
        });
        let exchanges = self.ranks[rank].exchanges.load(Ordering::Relaxed);
        Beat { operations: self.operations(rank), exchanges, waits }
    }

    /// What another process tells of a rank of its own.
    pub(crate) fn hear(&self, rank: usize, beat: Beat, now: Instant) {
        let Some(life) = self.ranks.get(rank) else { return };
        lock(&self.waits)[rank] = beat.waits.map(|(peer, exchanges, waited)| {
            let since = now.checked_sub(Duration::from_millis(waited)).unwrap_or(now);
            Wait { peer, place: (exchanges, since) }
        });
        life.exchanges.store(beat.exchanges, Ordering::Relaxed);
        life.heard_at.store(self.since_it_began(now), Ordering::Release);
        if life.heard.swap(beat.operations, Ordering::AcqRel) != beat.operations {
            self.moves(rank);
        }
    }

    fn since_it_began(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_millis() as u64
    }

    /// Whether nothing was heard for a while of a rank elsewhere: what it waited for then says nothing of now.
    fn is_silent(&self, rank: usize, time: Duration, now: Instant) -> bool {
        let heard = Duration::from_millis(self.ranks[rank].heard_at.load(Ordering::Acquire));
        !self.home.here.contains(&rank) && self.began + heard + time < now
    }

    /// What arrives is looked at next. Who was away starts to listen anew: the others may have ended in an order of their own, and
    /// their last words may be lost.
    pub(crate) fn looks(&self, now: Instant) {
        if self.was_away(now) {
            for life in &self.ranks {
                life.heard_at.store(0, Ordering::Release);
            }
        }
        self.looked_at.store(self.since_it_began(now), Ordering::Release);
    }

    fn was_away(&self, now: Instant) -> bool {
        let looked = Duration::from_millis(self.looked_at.load(Ordering::Acquire));
        self.began + looked + AWAY < now
    }

    /// A rank elsewhere whose process spoke once, has not left and is silent; nobody where this process was away.
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
        (0..self.world()).find(gone)
    }

    /// The same, looked at again and again for as long: where this process had no core for a while, what was said meanwhile is heard
    /// first.
    pub(super) fn still_gone(&self) -> Option<usize> {
        let mut gone = self.gone();
        for _ in 0..LOOKS {
            if gone.is_none() {
                break;
            }
            std::thread::sleep(GONE / LOOKS);
            gone = self.gone();
        }
        gone
    }

    /// Whom each rank waits for, as far as that can be relied on.
    pub(super) fn waits(&self, now: Instant) -> Vec<Option<Wait>> {
        let mut waits = lock(&self.waits).clone();
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
    use super::super::home::Home;
    use super::*;

    /// Rank 0 of two, each in a process of its own, as if it had begun a while ago.
    fn group(ago: Duration) -> Group {
        let options = Options { world: 2, deadline: Duration::from_secs(1), stop: Arc::default() };
        let group = Group::new(&options, Home { here: 0..1, ..Home::alone(2) });
        let mut group = Arc::into_inner(group).unwrap();
        group.began = group.began.checked_sub(ago).unwrap();
        group
    }

    #[test]
    fn who_falls_silent_is_gone_unless_this_process_was_away() {
        let beat = Beat { operations: 1, exchanges: 1, waits: Some((0, 1, 0)) };
        let ago = Duration::from_secs(10);
        for (silent, unlooked, gone) in
            [(50, 0, None), (300, 0, Some(1)), (300, 100, Some(1)), (3000, 2900, None)]
        {
            let (group, now) = (group(ago), Instant::now());
            let before =
                |milliseconds| now.checked_sub(Duration::from_millis(milliseconds)).unwrap();
            group.looks(before(silent));
            group.hear(1, beat, before(silent));
            group.looks(before(unlooked));
            assert_eq!(group.gone(), gone, "{silent} ms silent, {unlooked} ms away");
            // It looks again, and nothing comes.
            group.looks(Instant::now());
            assert_eq!(group.gone(), gone, "{silent} ms silent, {unlooked} ms away");
        }
    }

    #[test]
    fn who_was_away_takes_nobody_at_what_was_said_before() {
        let (group, now) = (group(Duration::from_secs(10)), Instant::now());
        let beat = Beat { operations: 1, exchanges: 1, waits: Some((0, 1, 0)) };
        group.looks(now);
        group.hear(1, beat, now);
        assert!(group.waits(now)[1].is_some());
        let later = now + Duration::from_secs(2);
        group.looks(later);
        assert!(group.waits(later)[1].is_none());
        group.hear(1, beat, later);
        assert!(group.waits(later)[1].is_some());
    }
}
