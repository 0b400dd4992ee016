//! Buffers that the ranks of one process allocate during a pass, where other ranks are in other processes.
//!
//! Inside a process a buffer that is lent or handed over stays where it is; from another one it arrives in a buffer of its
//! own. So it is enough to play the ranks of the process: what comes from outside is new, whoever had it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::prove::{Alive, Made};
use crate::{Block, Hop, Move, Part, Pass, Schedule};

/// Rows of heads in buffers that one rank allocated, the peak of every part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// What it made and that is alive on any rank of the process.
    pub made: Made,
    /// What it received from other processes and that is alive on any rank of this one.
    pub received: Alive,
}

/// A buffer of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Buffer {
    /// The unique number of the buffer.
    number: usize,
    /// The rank that allocated it.
    rank: usize,
    kind: Kind,
    /// The block that it first held.
    block: Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The buffer is the caller's.
    Own,
    Made,
    Received,
}

/// A block in flight to a rank of the process, or out of it.
struct Flight {
    block: Block,
    buffer: Buffer,
    /// The hop at whose end the block is awaited.
    awaited: usize,
}

/// One rank being played.
struct Player {
    rank: usize,
    held: BTreeMap<Block, Buffer>,
    arriving: Vec<Flight>,
    leaving: Vec<Flight>,
}

/// The buffers that the ranks `process` allocate during a pass of a proved schedule, where other ranks share no memory with them.
pub fn taken(schedule: &Schedule, process: Range<usize>) -> Vec<Taken> {
    let mut play = Play {
        schedule,
        numbers: 0,
        players: process.clone().map(Player::new).collect(),
        most: vec![Taken::default(); process.len()],
        process,
    };
    play.begin();
    (0..schedule.hops()).for_each(|hop| play.hop(hop));
    play.most
}

struct Play<'a> {
    schedule: &'a Schedule,
    process: Range<usize>,
    numbers: usize,
    players: Vec<Player>,
    most: Vec<Taken>,
}

impl Play<'_> {
    fn begin(&mut self) {
        for (place, rank) in self.process.clone().enumerate() {
            for part in [Part::Query, Part::KeyValue] {
                let block = self.schedule.whole(part, rank);
                let buffer = self.buffer(rank, Kind::Own, block);
                self.players[place].held.insert(block, buffer);
            }
        }
    }

    fn buffer(&mut self, rank: usize, kind: Kind, block: Block) -> Buffer {
        self.numbers += 1;
        Buffer { number: self.numbers, rank, kind, block }
    }

    fn hop(&mut self, index: usize) {
        let hops: Vec<Hop> =
            self.process.clone().map(|rank| self.schedule.hop(rank, index)).collect();
        let mut sent = BTreeMap::new();
        for (place, hop) in hops.iter().enumerate() {
            self.send(place, index, hop, &mut sent);
        }
        for (place, hop) in hops.iter().enumerate() {
            self.receive(place, index, hop, &mut sent);
            self.compute(place, hop);
        }
        self.count();
        for (player, hop) in self.players.iter_mut().zip(&hops) {
            player.leaving.retain(|flight| flight.awaited > index);
            let now = player.arriving.extract_if(.., |flight| flight.awaited <= index);
            let now: Vec<Flight> = now.collect();
            for flight in now {
                player.land(flight.block, flight.buffer);
            }
            player.held.retain(|block, _| !hop.frees.contains(block));
        }
    }

    /// Sends a rank's blocks; those that stay in the process are put into `sent`.
    fn send(
        &mut self,
        place: usize,
        index: usize,
        hop: &Hop,
        sent: &mut BTreeMap<(usize, usize, Block), Buffer>,
    ) {
        let player = &mut self.players[place];
        for Move { block, from, to, hops } in hop.sends.iter().copied() {
            let lent = block.part.is_lent();
            let buffer = if lent { player.around(block) } else { player.held.remove(&block) };
            let Some(buffer) = buffer else { continue };
            if self.process.contains(&to) {
                sent.insert((from, to, block), buffer);
            } else if !lent {
                player.leaving.push(Flight { block, buffer, awaited: index + hops - 1 });
            }
        }
    }

    fn receive(
        &mut self,
        place: usize,
        index: usize,
        hop: &Hop,
        sent: &mut BTreeMap<(usize, usize, Block), Buffer>,
    ) {
        for Move { block, from, to, hops } in hop.receives.iter().copied() {
            let buffer = match sent.remove(&(from, to, block)) {
                Some(buffer) => buffer,
                None => self.buffer(to, Kind::Received, block),
            };
            self.players[place].arriving.push(Flight { block, buffer, awaited: index + hops - 1 });
        }
    }

    /// Begins the sums and results of a hop.
    fn compute(&mut self, place: usize, hop: &Hop) {
        let (rank, backward) = (self.process.start + place, self.schedule.pass == Pass::Backward);
        let result = if backward { Part::QueryGradient } else { Part::Output };
        let mut begun = hop.zeros.clone();
        if backward {
            let sums = hop.tiles.iter().map(|tile| tile.keys.of(Part::Gradient));
            let sums: BTreeSet<Block> = sums.collect();
            let held = &self.players[place].held;
            begun.extend(sums.into_iter().filter(|sum| !held.contains_key(sum)));
        }
        begun.extend(hop.finishes.iter().map(|queries| queries.of(result)));
        for block in begun {
            let buffer = self.buffer(rank, Kind::Made, block);
            self.players[place].land(block, buffer);
        }
    }

    /// Counts every buffer once, for the rank that allocated it.
    fn count(&mut self) {
        let mut buffers: Vec<Buffer> = self.players.iter().flat_map(Player::buffers).collect();
        buffers.sort_unstable();
        buffers.dedup();
        let mut now = vec![Taken::default(); self.most.len()];
        for Buffer { rank, kind, block, .. } in buffers {
            let taken = &mut now[rank - self.process.start];
            match kind {
                Kind::Own => {}
                Kind::Made => {
                    taken.made = taken.made.each(Made::of(block, rank), usize::saturating_add);
                }
                Kind::Received => taken.received.add(block),
            }
        }
        for (most, now) in self.most.iter_mut().zip(now) {
            most.made = most.made.each(now.made, usize::max);
            most.received = most.received.each(now.received, usize::max);
        }
    }
}

impl Player {
    fn new(rank: usize) -> Player {
        Player { rank, held: BTreeMap::new(), arriving: Vec::new(), leaving: Vec::new() }
    }

    fn buffers(&self) -> impl Iterator<Item = Buffer> {
        let flights = self.arriving.iter().chain(&self.leaving);
        self.held.values().copied().chain(flights.map(|flight| flight.buffer))
    }

    /// The buffer that contains a block.
    fn around(&self, block: Block) -> Option<Buffer> {
        let same = self.held.get(&block);
        let around = || self.held.iter().find(|(held, _)| held.contains(block));
        same.or_else(|| around().map(|(_, buffer)| buffer)).copied()
    }

    /// Holds a block as the executor does: a sum is added to one that contains it; of two equal ones the owner's stays, and elsewhere the
    /// one that arrived.
    fn land(&mut self, block: Block, buffer: Buffer) {
        if block.part.is_sum() {
            if let Some(same) = self.held.get_mut(&block) {
                if block.owner != self.rank {
                    *same = buffer;
                }
                return;
            }
            if self.around(block).is_some() {
                return;
            }
        }
        self.held.insert(block, buffer);
    }
}
