//! Ranks being played that hold the same: the first of them stands for all.

use std::ops::Range;

use super::cover::Cover;
use super::holder::{Found, Holder};
use super::{Alive, Computed, Counted, Flaw};
use crate::alike::Shift;
use crate::{AlikeRanks, Block, Hop, KeyRows, Meeting, Move, Schedule};

/// A block in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) moved: Move,
    /// The hop at whose end the block is awaited.
    awaited: usize,
    /// The rank that made the buffer.
    maker: usize,
}

/// Ranks that hold the same.
#[derive(Clone, Debug)]
pub(super) struct Player<'a> {
    pub(super) group: AlikeRanks,
    pub(super) holder: Holder<'a>,
    /// The hop being played, with moves sorted by the other rank.
    pub(super) hop: Hop,
    /// Blocks in flight to the player, in the order of their posts, and those that left it.
    pub(super) arriving: Vec<Flight>,
    leaving: Vec<Flight>,
    /// The peak that every rank of the player was counted with.
    pub(super) counted: Counted,
}

impl<'a> Player<'a> {
    pub(super) fn new(schedule: &'a Schedule, group: AlikeRanks) -> Player<'a> {
        let holder = Holder::new(schedule, group.first());
        let (arriving, leaving, counted) = (Vec::new(), Vec::new(), Counted::default());
        Player { group, holder, hop: Hop::default(), arriving, leaving, counted }
    }

    /// Starts a hop; moves between two ranks stay in order.
    pub(super) fn turn_to(&mut self, schedule: &Schedule, hop: usize) {
        self.hop = schedule.hop(self.group.first(), hop);
        self.hop.sends.sort_by_key(|sent| sent.to);
        self.hop.receives.sort_by_key(|received| received.from);
    }

    /// The stations at which what the player receives is another player's.
    pub(super) fn cuts(&self, groups: &[AlikeRanks], world: usize) -> Vec<usize> {
        let alike = self.group.alike;
        let mut cuts = Vec::new();
        for received in self.hop.receives.iter().filter(|one| !one.block.part.is_lent()) {
            let by = alike.shift(world, received.from, self.group.first());
            let lane = received.from % alike.lanes;
            let senders = || groups.iter().filter(|group| group.lane == lane);
            if senders().count() > 1 {
                let station =
                    |group: &AlikeRanks| alike.moved(world, group.first(), by) / alike.lanes;
                cuts.extend(senders().map(station));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Posts the sends of the hop.
    pub(super) fn post(&mut self, hop: usize) -> Result<(), Flaw> {
        for moved in &self.hop.sends {
            let maker = if moved.block.part.is_lent() {
                self.holder.check_kept(hop, moved.block)?;
                moved.from
            } else {
                // A block that is given away: a part that did not move would be lost.
                self.holder.take(hop, moved.block)?
            };
            self.leaving.push(Flight { moved: *moved, awaited: hop + moved.hops - 1, maker });
        }
        Ok(())
    }

    /// The blocks that other players have posted for this one in a hop.
    pub(super) fn arriving(&self, hop: usize, players: &[Player<'_>]) -> Vec<Flight> {
        let flight = |moved: &Move| {
            let awaited = hop + moved.hops - 1;
            let maker =
                if moved.block.part.is_lent() { moved.from } else { self.maker(moved, players) };
            Flight { moved: *moved, awaited, maker }
        };
        self.hop.receives.iter().map(flight).collect()
    }

    /// The rank that made what is received, which the sender knows.
    fn maker(&self, received: &Move, players: &[Player<'_>]) -> usize {
        let (alike, world) = (self.group.alike, self.holder.schedule.world());
        let sender = of_rank(players, received.from);
        let by = alike.shift(world, received.from, sender.group.first());
        let wanted = sender.moved(*received, by);
        let posted = &sender.leaving[sender.leaving.len() - sender.hop.sends.len()..];
        let first = posted.partition_point(|flight| flight.moved.to < wanted.to);
        let made = posted[first..].iter().find(|flight| flight.moved == wanted);
        let maker = made.map_or(wanted.from, |flight| flight.maker);
        alike.moved(world, maker, alike.shift(world, sender.group.first(), received.from))
    }

    pub(super) fn compute(
        &mut self,
        hop: usize,
        found: &mut Found,
        cover: &mut Cover,
    ) -> Result<(), Flaw> {
        self.holder.compute(hop, &self.hop, found, &mut |tile| cover.take(&self.group, tile))
    }

    /// Checks that what was lent is still held when it has arrived.
    pub(super) fn leave(&mut self, hop: usize) -> Result<(), Flaw> {
        for flight in self.leaving.extract_if(.., |flight| flight.awaited <= hop) {
            if flight.moved.block.part.is_lent() {
                self.holder.check_kept(hop, flight.moved.block)?;
            }
        }
        Ok(())
    }

    pub(super) fn land(&mut self, hop: usize) -> Result<(), Flaw> {
        for Flight { moved, maker, .. } in
            self.arriving.extract_if(.., |flight| flight.awaited <= hop)
        {
            self.holder.land(hop, moved.block, maker)?;
        }
        Ok(())
    }

    pub(super) fn free(&mut self, hop: usize) -> Result<(), Flaw> {
        self.holder.free(hop, &self.hop.frees)
    }

    /// What is alive on each rank of the player.
    pub(super) fn alive(&self) -> Alive {
        let mut alive = self.holder.alive();
        let given = self.leaving.iter().filter(|flight| !flight.moved.block.part.is_lent());
        self.arriving.iter().chain(given).for_each(|flight| alive.add(flight.moved.block));
        alive
    }

    /// The most that each rank of the player computes at once in the hop.
    pub(super) fn computed(&self) -> Computed {
        let rows = |keys: &[KeyRows]| keys.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        let of_queries = |meetings: &[Meeting]| Computed {
            tiles: meetings.iter().map(|meeting| meeting.keys().len()).sum(),
            keys: meetings.iter().map(|one| one.heads.len() * rows(one.keys())).sum(),
        };
        let all = self.hop.tiles.meetings().chunk_by(|one, other| one.queries == other.queries);
        all.map(of_queries).fold(Computed::default(), |most, one| most.each(one, usize::max))
    }

    /// The blocks held or arriving, with the ranks that made them.
    pub(super) fn made(&self) -> impl Iterator<Item = (Block, usize)> {
        let arriving = self.arriving.iter().map(|flight| (flight.moved.block, flight.maker));
        self.holder.made().chain(arriving)
    }

    /// A block that never arrives, if any.
    pub(super) fn under_way(&self) -> Option<Move> {
        self.leaving.iter().chain(&self.arriving).map(|flight| flight.moved).next()
    }

    /// Whether a neighbouring player holds the same, moved.
    pub(super) fn is_like(&self, other: &Player<'_>) -> bool {
        let next = self.group.stations.end == other.group.stations.start;
        if !next || self.group.lane != other.group.lane {
            return false;
        }
        let by = self.back_from(other.group.first());
        let flights = |flights: &[Flight]| -> Vec<Flight> {
            flights.iter().map(|flight| other.flown(*flight, by)).collect()
        };
        self.arriving == flights(&other.arriving)
            && self.leaving == flights(&other.leaving)
            && self.holder.holds(&other.holder, |rank| other.shifted(rank, by))
    }

    /// Splits off the stations from `at` on.
    fn part(&mut self, at: usize) -> Player<'a> {
        let mut other = self.clone();
        other.group.stations.start = at;
        self.group.stations.end = at;
        let world = self.holder.schedule.world();
        let by = self.group.alike.shift(world, self.group.first(), other.group.first());
        other.holder = self.holder.moved(other.group.first(), |rank| self.shifted(rank, by));
        for flight in other.arriving.iter_mut().chain(&mut other.leaving) {
            *flight = self.flown(*flight, by);
        }
        other
    }

    fn back_from(&self, rank: usize) -> Shift {
        self.group.alike.shift(self.holder.schedule.world(), rank, self.group.first())
    }
    fn shifted(&self, rank: usize, by: Shift) -> usize {
        self.group.alike.moved(self.holder.schedule.world(), rank, by)
    }
    /// A move, with its ranks moved by `by`.
    pub(super) fn moved(&self, moved: Move, by: Shift) -> Move {
        let Move { block, from, to, hops } = moved;
        let [owner, from, to] = [block.owner, from, to].map(|rank| self.shifted(rank, by));
        Move { block: Block { owner, ..block }, from, to, hops }
    }
    fn flown(&self, Flight { moved, awaited, maker }: Flight, by: Shift) -> Flight {
        Flight { moved: self.moved(moved, by), awaited, maker: self.shifted(maker, by) }
    }
}

/// The player that a rank belongs to.
pub(super) fn of_rank<'p, 'a>(players: &'p [Player<'a>], rank: usize) -> &'p Player<'a> {
    let alike = players[0].group.alike;
    let place = if alike.rotates_lanes {
        (0, rank / alike.lanes)
    } else {
        (rank % alike.lanes, rank / alike.lanes)
    };
    let after = players.partition_point(|one| (one.group.lane, one.group.stations.start) <= place);
    &players[after - 1]
}

/// Players split at the stations that `cuts` gives for each.
pub(super) fn parted<'a>(
    players: Vec<Player<'a>>,
    cuts: impl Fn(&Player<'a>) -> Vec<usize>,
) -> Vec<Player<'a>> {
    let mut parted = Vec::with_capacity(players.len());
    for mut player in players {
        for cut in cuts(&player) {
            let Range { start, end } = player.group.stations;
            if start < cut && cut < end {
                let rest = player.part(cut);
                parted.push(std::mem::replace(&mut player, rest));
            }
        }
        parted.push(player);
    }
    parted
}
