//! Proves a schedule before anything runs, by playing it: every rank, hop by hop, with blocks that only remember what they are.
//!
//! No deadlock: all ranks make the same number of hops, in a hop everything is posted before
//! anything is awaited, and within a hop the sends from one rank to another are the receives of
//! that other from the first, in the same order. Then no wait depends on a later hop, and by
//! induction every hop ends.
//!
//! Exactness: tiles are boxes of query heads by query rows by key rows, and no two overlap; what they leave of every pair of shards is
//! invisible ([`cover`]). A sum is never copied or dropped, only handed on and added to one that contains it; so if in the end only results
//! at their owners are left, every tile's part is in them exactly once. The same holds for outputs, which are never added.
//!
//! A tile in two products counts where its scores are computed; the tile of its values must find these scores, for all keys that its
//! queries are scored with, and uses them up; scores that are left when the queries are finished are a flaw. So pairs are weighted as often
//! as they are scored: once.
//!
//! Ranks that are alike ([`crate::Alike`]) are one player as long as they hold the same: what the first of them does, moved, stands for
//! all. They split where a border comes between them, and join where they hold the same again. [`prove_each`] takes no rank to be like
//! another.

mod cover;
mod flaw;
mod holder;
mod matching;
mod player;
mod running;
mod sharded;

use std::collections::BTreeSet;

use crate::{Alike, AlikeRanks, Block, Part, Pass, Positions, Schedule};
use cover::Cover;
pub use flaw::{At, Flaw};
use holder::Found;
use player::Player;
use sharded::is_sharded;

/// What was proved of a schedule. Amounts alive are in rows of heads ([`Block::volume`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The peak of every part that is alive, by rank: what is held, and what arrives or leaves, from post to wait. The caller's own
    /// queries, keys and values do not count.
    pub alive: Vec<Alive>,
    /// The peak of what a rank has made and that is alive on any rank, by rank: its memory where ranks share memory and a buffer that is
    /// handed over stays where it is.
    pub made: Vec<Made>,
    /// The most that a rank computes at once, by rank.
    pub computed: Vec<Computed>,
    /// The parts that are sent.
    pub sent: BTreeSet<Part>,
    /// The number of hops in which something is sent.
    pub hops: usize,
}

/// The size of tiles that are computed at once: those of one block of queries in a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// The number of tiles.
    pub tiles: usize,
    /// Rows of heads of the tiles' keys.
    pub keys: usize,
}

/// Rows of heads by part, and scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Other ranks' queries, and backward what belongs to them.
    pub queries: usize,
    /// Other ranks' keys and values.
    pub key_values: usize,
    /// Other ranks' keys without values, and values without keys.
    pub halves: usize,
    /// Scores that are kept, in rows of heads times keys.
    pub scores: usize,
    /// Outputs, own and other ranks'.
    pub outputs: usize,
    /// Gradients of queries, own and other ranks'.
    pub query_gradients: usize,
    /// Gradients of keys and values, own and other ranks'.
    pub gradients: usize,
}

/// Rows of heads that a rank has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Made {
    /// Gradients of keys and values, own and other ranks'.
    pub gradients: usize,
    /// Gradients of other ranks' queries.
    pub query_gradients: usize,
}

/// The most ranks that are proved one by one even where they are alike.
const EACH: usize = 64;

/// Proves a schedule: no deadlock, every visible pair of every head computed exactly once, every result reduced to its owner with all its
/// parts, every buffer freed. With more than 64 ranks, alike ones are proved together.
///
/// # Errors
/// The first [`Flaw`] found.
pub fn prove(schedule: &Schedule) -> Result<Proof, Flaw> {
    if schedule.world() <= EACH { prove_each(schedule) } else { prove_alike(schedule) }
}

/// Proves a schedule as [`prove`] does, but every rank by itself.
///
/// # Errors
/// The first [`Flaw`] found.
pub fn prove_each(schedule: &Schedule) -> Result<Proof, Flaw> {
    proved(schedule, Alike::nobody(schedule.world()))
}

/// Proves a schedule as [`prove`] does, with one rank for all that the generator says are alike.
///
/// # Errors
/// The first [`Flaw`] found, at one of the ranks that have it.
pub fn prove_alike(schedule: &Schedule) -> Result<Proof, Flaw> {
    proved(schedule, schedule.alike())
}

fn proved(schedule: &Schedule, alike: Alike) -> Result<Proof, Flaw> {
    check_shape(schedule, alike)?;
    let world = schedule.world();
    let players = alike.groups(world, &[]).into_iter();
    let mut play = Play {
        schedule,
        alike,
        players: players.map(|group| Player::new(schedule, group)).collect(),
        cover: Cover::new(schedule, alike),
        found: Found::default(),
        proof: Proof {
            alive: vec![Alive::default(); world],
            made: vec![Made::default(); world],
            computed: vec![Computed::default(); world],
            sent: BTreeSet::new(),
            hops: 0,
        },
        counted: Vec::new(),
        changes: Vec::new(),
    };
    for hop in 0..schedule.hops() {
        play.part(hop);
        matching::check(schedule, hop, &play.players)?;
        play.hop(hop)?;
        play.join();
    }
    play.check_end()?;
    Ok(play.proof)
}

/// Checks that every position is on one rank, and that all ranks make the same number of hops.
fn check_shape(schedule: &Schedule, alike: Alike) -> Result<(), Flaw> {
    let (world, wanted) = (schedule.world(), schedule.hops());
    let tokens = schedule.positions.iter().map(Positions::tokens).sum();
    if world == 0 || world != schedule.positions.len() || !is_sharded(&schedule.positions, tokens) {
        return Err(Flaw::NotDealt { tokens, world });
    }
    for rank in alike.groups(world, &[]).iter().map(AlikeRanks::first) {
        let found = schedule.generator.hops(rank);
        if found != wanted {
            return Err(Flaw::UnevenHops { rank, found, wanted });
        }
    }
    Ok(())
}

/// A schedule being played.
struct Play<'a> {
    schedule: &'a Schedule,
    alike: Alike,
    /// Players by lane, then by station.
    players: Vec<Player<'a>>,
    cover: Cover,
    found: Found,
    proof: Proof,
    /// Stations at which more or less of what is made begins to be alive, as counted in the last hop; and room for the next.
    counted: Vec<(usize, Made, bool)>,
    changes: Vec<(usize, Made, bool)>,
}

impl Play<'_> {
    /// Splits players at the borders of a hop, and where what they receive was made by different ranks.
    fn part(&mut self, hop: usize) {
        let schedule = self.schedule;
        if self.alike.parts(schedule.world()) {
            let borders = schedule.generator.borders(hop);
            self.players = player::parted(std::mem::take(&mut self.players), |_| borders.clone());
        }
        self.players.iter_mut().for_each(|player| player.turn_to(schedule, hop));
        let lanes = self.players.chunk_by(|a, b| a.group.lane == b.group.lane).count();
        if lanes < self.players.len() {
            let starts: Vec<_> = self.players.iter().map(|player| player.group.clone()).collect();
            let cuts = |player: &Player<'_>| player.cuts(&starts, schedule.world());
            self.players = player::parted(std::mem::take(&mut self.players), cuts);
            self.players.iter_mut().for_each(|player| player.turn_to(schedule, hop));
        }
    }

    fn hop(&mut self, hop: usize) -> Result<(), Flaw> {
        self.players.iter_mut().try_for_each(|player| player.post(hop))?;
        let arriving: Vec<_> =
            self.players.iter().map(|one| one.arriving(hop, &self.players)).collect();
        for (player, arriving) in self.players.iter_mut().zip(arriving) {
            player.arriving.extend(arriving);
            player.compute(hop, &mut self.found, &mut self.cover)?;
        }
        // The most is alive between the tiles and the wait.
        self.count();
        if self.schedule.pass == Pass::Backward {
            self.count_made();
        }
        self.players.iter_mut().try_for_each(|player| player.leave(hop))?;
        self.players.iter_mut().try_for_each(|player| player.land(hop))?;
        self.players.iter_mut().try_for_each(|player| player.free(hop))
    }

    /// Joins neighbouring players that hold the same again.
    fn join(&mut self) {
        let mut joined: Vec<Player<'_>> = Vec::with_capacity(self.players.len());
        for player in std::mem::take(&mut self.players) {
            match joined.last_mut() {
                Some(last) if last.is_like(&player) => {
                    last.group.stations.end = player.group.stations.end;
                    last.counted = last.counted.and(player.counted);
                }
                _ => joined.push(player),
            }
        }
        self.players = joined;
    }

    fn count(&mut self) {
        let Proof { alive, computed, sent, hops, .. } = &mut self.proof;
        for player in &mut self.players {
            let most =
                player.counted.or(Counted { alive: player.alive(), computed: player.computed() });
            if most != player.counted {
                player.counted = most;
                for rank in player.group.ranks() {
                    alive[rank] = alive[rank].each(most.alive, usize::max);
                    computed[rank] = computed[rank].each(most.computed, usize::max);
                }
            }
            sent.extend(player.hop.sends.iter().map(|sent| sent.block.part));
        }
        *hops += usize::from(self.players.iter().any(|player| !player.hop.sends.is_empty()));
    }

    /// Counts what ranks have made and that is alive: changes from one station to the next, lane by lane.
    fn count_made(&mut self) {
        let (world, Alike { lanes, rotates_lanes }) = (self.schedule.world(), self.alike);
        let stations = world / lanes;
        let mut changes = std::mem::take(&mut self.changes);
        changes.clear();
        for player in &self.players {
            for (block, maker) in player.made() {
                let made = Made::of(block, maker);
                let first = if rotates_lanes { 0 } else { maker % lanes * stations };
                let start = if rotates_lanes { 0 } else { maker / lanes };
                let end = start + player.group.stations.len();
                for (start, end) in [(start, end.min(stations)), (0, end.saturating_sub(stations))]
                {
                    changes.push((first + start, made, true));
                    changes.push((first + end, made, false));
                }
            }
        }
        changes.sort_unstable_by_key(|(at, _, more)| (*at, !more));
        if changes != self.counted {
            let (mut now, mut next) = (Made::default(), changes.iter().peekable());
            let lanes_of = if rotates_lanes { 1 } else { lanes };
            for at in 0..lanes_of * stations {
                while let Some((_, made, more)) = next.next_if(|(place, ..)| *place <= at) {
                    now = now
                        .each(*made, if *more { usize::wrapping_add } else { usize::wrapping_sub });
                }
                let first = at % stations * lanes + at / stations;
                let most = &mut self.proof.made;
                let ranks = first..first + if rotates_lanes { lanes } else { 1 };
                ranks.for_each(|rank| most[rank] = most[rank].each(now, usize::max));
            }
        }
        self.changes = std::mem::replace(&mut self.counted, changes);
    }

    /// Checks that everything visible was computed, all results are whole and at their owners, and nothing else is left.
    fn check_end(&self) -> Result<(), Flaw> {
        let hop = self.schedule.hops();
        if let Some(moved) = self.players.iter().find_map(Player::under_way) {
            return Err(Flaw::Leaked(At { rank: moved.from, hop, block: moved.block }));
        }
        self.cover.check(self.schedule)?;
        let results: &[Part] = match self.schedule.pass {
            Pass::Forward => &[Part::Output],
            Pass::Backward => &[Part::QueryGradient, Part::Gradient],
        };
        let holders = || self.players.iter().map(|player| &player.holder);
        holders()
            .try_for_each(|holder| results.iter().try_for_each(|part| holder.check_home(*part)))?;
        holders().try_for_each(|holder| holder.check_left(results))
    }
}

impl Made {
    /// What a block adds to the count of its maker.
    pub(crate) fn of(block: Block, maker: usize) -> Made {
        let volume = |counts: bool| if counts { block.volume() } else { 0 };
        let others = block.part == Part::QueryGradient && block.owner != maker;
        Made { gradients: volume(block.part == Part::Gradient), query_gradients: volume(others) }
    }
    pub(crate) fn each(self, other: Made, of: fn(usize, usize) -> usize) -> Made {
        Made {
            gradients: of(self.gradients, other.gradients),
            query_gradients: of(self.query_gradients, other.query_gradients),
        }
    }
}

impl Alive {
    pub(crate) fn add(&mut self, block: Block) {
        *match block.part {
            Part::Query => &mut self.queries,
            Part::KeyValue => &mut self.key_values,
            Part::Key | Part::Value => &mut self.halves,
            Part::Output => &mut self.outputs,
            Part::QueryGradient => &mut self.query_gradients,
            Part::Gradient => &mut self.gradients,
        } += block.volume();
    }
    pub(crate) fn each(self, other: Alive, of: fn(usize, usize) -> usize) -> Alive {
        Alive {
            queries: of(self.queries, other.queries),
            key_values: of(self.key_values, other.key_values),
            halves: of(self.halves, other.halves),
            scores: of(self.scores, other.scores),
            outputs: of(self.outputs, other.outputs),
            query_gradients: of(self.query_gradients, other.query_gradients),
            gradients: of(self.gradients, other.gradients),
        }
    }
}

impl Computed {
    fn each(self, other: Computed, of: fn(usize, usize) -> usize) -> Computed {
        Computed { tiles: of(self.tiles, other.tiles), keys: of(self.keys, other.keys) }
    }
}

/// The peak that every rank of a player was counted with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    alive: Alive,
    computed: Computed,
}

impl Counted {
    /// The maximum of each field.
    fn or(self, other: Counted) -> Counted {
        self.each(other, usize::max)
    }
    /// The minimum of each field.
    fn and(self, other: Counted) -> Counted {
        self.each(other, usize::min)
    }
    fn each(self, other: Counted, of: fn(usize, usize) -> usize) -> Counted {
        let (alive, computed) =
            (self.alive.each(other.alive, of), self.computed.each(other.computed, of));
        Counted { alive, computed }
    }
}
