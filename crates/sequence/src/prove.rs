//! Checks a schedule before anything runs, by playing it: every rank, hop by hop, with blocks that
//! remember only what they are.
//!
//! No deadlock: all ranks make the same number of hops, in a hop everything is posted before
//! anything is awaited, and within a hop the sends from one rank to another are the receives of
//! that other from the first, in the same order. Then no wait depends on a later hop, and by
//! induction every hop ends.
//!
//! Exactness: tiles are boxes of query heads by query rows by key rows, and no two meet; what they
//! leave of every pair of shards is invisible ([`cover`]). A sum is never copied, never dropped,
//! only handed on and added to what contains it, so when nothing is left in the end but what is at
//! home, every tile's part is in it, once. The same holds for outputs, which are never added.
//!
//! A tile in two products is one where its scores are made; the tile of its values must find those
//! scores, of all keys that its queries are scored with, and uses them up; what is left of them when
//! the queries are finished is a flaw. So pairs are weighed as often as they are scored: once.

mod cover;
mod dealt;
mod flaw;
mod holder;
mod matching;
mod running;

use crate::{Block, Move, Part, Pass, Positions, Schedule};
use cover::Cover;
use dealt::is_dealt;
pub use flaw::{At, Flaw};
use holder::{Arrival, Found, Holder};

/// What was proved of a schedule. What is alive is counted in rows of heads ([`Block::volume`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The most of every part that is alive at once, by rank: what is at hand, and what arrives or
    /// leaves, from its post to its wait. The caller's own queries, keys and values are not
    /// counted.
    pub alive: Vec<Alive>,
    /// The most that a rank has made and that is alive anywhere, by rank: what it takes where ranks share memory and a buffer that is
    /// handed over stays where it is.
    pub made: Vec<Made>,
    /// Hops in which something moves.
    pub hops: usize,
}

/// Rows of heads by part, and scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Others' queries, and backward what belongs to them.
    pub queries: usize,
    /// Others' keys and values.
    pub key_values: usize,
    /// Others' keys without values, and values without keys.
    pub halves: usize,
    /// Scores that are kept: rows of heads times keys.
    pub scores: usize,
    /// Outputs, own and others'.
    pub outputs: usize,
    /// Gradients of queries, own and others'.
    pub query_gradients: usize,
    /// Gradients of keys and values, own and others'.
    pub gradients: usize,
}

/// Rows of heads that a rank has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Gradients of keys and values, own and others'.
    pub gradients: usize,
    /// Gradients of others' queries.
    pub query_gradients: usize,
}

/// No deadlock, every visible pair of every head exactly once, every result home with every part of
/// it, every buffer freed.
///
/// # Errors
/// The first [`Flaw`] that is met.
pub fn prove(schedule: &Schedule) -> Result<Proof, Flaw> {
    check_shape(schedule)?;
    let world = schedule.world();
    let mut play = Play {
        schedule,
        holders: (0..world).map(|rank| Holder::new(schedule, rank)).collect(),
        cover: Cover::new(schedule),
        found: Found::default(),
        flying: Vec::new(),
        alive: vec![Alive::default(); world],
        made: vec![Made::default(); world],
    };
    let mut moving = 0;
    for hop in 0..schedule.hops() {
        matching::check(schedule, hop)?;
        play.hop(hop)?;
        moving += usize::from(schedule.ranks.iter().any(|hops| !hops[hop].sends.is_empty()));
    }
    play.check_end()?;
    Ok(Proof { alive: play.alive, made: play.made, hops: moving })
}

/// Every position is one rank's, and everybody makes the same number of hops.
fn check_shape(schedule: &Schedule) -> Result<(), Flaw> {
    let (world, wanted) = (schedule.world(), schedule.hops());
    let tokens = schedule.positions.iter().map(Positions::tokens).sum();
    if world == 0 || world != schedule.positions.len() || !is_dealt(&schedule.positions, tokens) {
        return Err(Flaw::NotDealt { tokens, world });
    }
    let lengths = schedule.ranks.iter().map(Vec::len).enumerate();
    for (rank, found) in lengths {
        if found != wanted {
            return Err(Flaw::UnevenHops { rank, found, wanted });
        }
    }
    Ok(())
}

/// A schedule at play.
struct Play<'a> {
    schedule: &'a Schedule,
    holders: Vec<Holder<'a>>,
    cover: Cover,
    found: Found,
    /// What is on its way, in the order in which it was posted.
    flying: Vec<Arrival<'a>>,
    alive: Vec<Alive>,
    made: Vec<Made>,
}

impl Play<'_> {
    fn hop(&mut self, hop: usize) -> Result<(), Flaw> {
        for holder in &mut self.holders {
            holder.post(hop, &mut self.flying)?;
        }
        for holder in &mut self.holders {
            holder.compute(hop, &mut self.found, &mut self.cover)?;
        }
        // Between the tiles and the wait there is most of everything.
        self.count();
        let flying = std::mem::take(&mut self.flying);
        for arrival in flying {
            if arrival.awaited > hop {
                self.flying.push(arrival);
                continue;
            }
            let Arrival { moved: &Move { block, from, to, .. }, maker, .. } = arrival;
            if block.part.is_lent() {
                self.holders[from].check_kept(hop, block)?;
            }
            self.holders[to].land(hop, block, maker)?;
        }
        self.holders.iter_mut().try_for_each(|holder| holder.free(hop))
    }

    fn count(&mut self) {
        let mut alive: Vec<Alive> = self.holders.iter().map(Holder::alive).collect();
        let mut made = vec![Made::default(); alive.len()];
        for (block, maker) in self.holders.iter().flat_map(Holder::made) {
            made[maker].add(block, maker);
        }
        for Arrival { moved: Move { block, from, to, .. }, maker, .. } in &self.flying {
            alive[*to].add(*block);
            if !block.part.is_lent() {
                alive[*from].add(*block);
            }
            made[*maker].add(*block, *maker);
        }
        self.alive.iter_mut().zip(alive).for_each(|(most, now)| *most = most.or(now));
        self.made.iter_mut().zip(made).for_each(|(most, now)| *most = most.or(now));
    }

    /// All that is visible was computed, all results are whole and at home, and nothing else is
    /// left.
    fn check_end(&self) -> Result<(), Flaw> {
        let hop = self.schedule.hops();
        if let Some(Arrival { moved, .. }) = self.flying.first() {
            return Err(Flaw::Leaked(At { rank: moved.from, hop, block: moved.block }));
        }
        self.cover.check(self.schedule)?;
        let results: &[Part] = match self.schedule.pass {
            Pass::Forward => &[Part::Output],
            Pass::Backward => &[Part::QueryGradient, Part::Gradient],
        };
        for holder in &self.holders {
            results.iter().try_for_each(|part| holder.check_home(*part))?;
        }
        self.holders.iter().try_for_each(|holder| holder.check_left(results))
    }
}

impl Made {
    fn add(&mut self, block: Block, maker: usize) {
        match block.part {
            Part::Gradient => self.gradients += block.volume(),
            Part::QueryGradient if block.owner != maker => self.query_gradients += block.volume(),
            _ => {}
        }
    }

    /// The more of each.
    fn or(self, other: Made) -> Made {
        Made {
            gradients: self.gradients.max(other.gradients),
            query_gradients: self.query_gradients.max(other.query_gradients),
        }
    }
}

impl Alive {
    fn add(&mut self, block: Block) {
        *match block.part {
            Part::Query => &mut self.queries,
            Part::KeyValue => &mut self.key_values,
            Part::Key | Part::Value => &mut self.halves,
            Part::Output => &mut self.outputs,
            Part::QueryGradient => &mut self.query_gradients,
            Part::Gradient => &mut self.gradients,
        } += block.volume();
    }
    /// The more of each.
    fn or(self, other: Alive) -> Alive {
        Alive {
            queries: self.queries.max(other.queries),
            key_values: self.key_values.max(other.key_values),
            halves: self.halves.max(other.halves),
            scores: self.scores.max(other.scores),
            outputs: self.outputs.max(other.outputs),
            query_gradients: self.query_gradients.max(other.query_gradients),
            gradients: self.gradients.max(other.gradients),
        }
    }
}
