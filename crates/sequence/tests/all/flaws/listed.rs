//! Schedules with listed hops, which tests damage and both proofs check.

use std::collections::BTreeSet;
use std::sync::Arc;

use annulus_sequence::{
    Alike, Block, Flaw, Generator, Hop, Move, Positions, Proof, Schedule, TilePlan, Tiles,
    prove_alike, prove_each,
};

/// A schedule whose hops are listed, to be damaged.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) of: Schedule,
    pub(super) positions: Vec<Positions>,
    pub(super) ranks: Vec<Vec<Hop>>,
    /// The symmetry of its ranks, as it claims.
    pub(super) alike: Option<Alike>,
}

impl Listed {
    pub(super) fn new(of: Schedule) -> Listed {
        let (positions, ranks) = (of.positions.to_vec(), of.listed());
        let alike = of.generator.alike();
        Listed { of, positions, ranks, alike }
    }
    pub(super) fn hops(&self) -> usize {
        self.of.hops()
    }
    pub(super) fn world(&self) -> usize {
        self.of.world()
    }
    pub(super) fn schedule(&self) -> Schedule {
        let generator = Arc::new(Alikes { ranks: self.ranks.clone(), alike: self.alike });
        Schedule { positions: self.positions.clone().into(), generator, ..self.of.clone() }
    }
    /// Proves the schedule rank by rank. Where ranks are alike, the proof of symmetric ranks must agree.
    pub(super) fn prove(&self) -> Result<Proof, Flaw> {
        let schedule = self.schedule();
        let (proof, shorter) = (prove_each(&schedule), prove_alike(&schedule));
        assert_eq!(proof.is_ok(), shorter.is_ok(), "{proof:?} is not {shorter:?}");
        if let Ok(proof) = &proof {
            assert_eq!(Ok(proof), shorter.as_ref());
        }
        proof
    }
}

/// Damage to the tiles of a hop.
pub(super) trait Edit {
    /// Changes the tiles as a list.
    fn edit<T>(&mut self, change: impl FnOnce(&mut Vec<TilePlan>) -> T) -> T;
}

impl Edit for Tiles {
    fn edit<T>(&mut self, change: impl FnOnce(&mut Vec<TilePlan>) -> T) -> T {
        let mut all: Vec<TilePlan> = self.iter().collect();
        let changed = change(&mut all);
        *self = all.into_iter().collect();
        changed
    }
}

/// The flaw found in a schedule that was proved before `damage`.
#[track_caller]
pub(super) fn broken(mut schedule: Listed, damage: impl FnOnce(&mut Listed)) -> Flaw {
    assert_eq!(schedule.prove().err(), None);
    damage(&mut schedule);
    schedule.prove().expect_err("damage is found")
}

/// Listed hops with the symmetry of ranks, and a border wherever one differs.
#[derive(Debug)]
struct Alikes {
    ranks: Vec<Vec<Hop>>,
    alike: Option<Alike>,
}

impl Generator for Alikes {
    fn world(&self) -> usize {
        self.ranks.len()
    }
    fn hops(&self, rank: usize) -> usize {
        self.ranks[rank].len()
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        self.ranks[rank][index].clone()
    }
    /// Lanes turn where they really do, and lists are equally long.
    fn alike(&self) -> Option<Alike> {
        let hops = self.ranks.first().map_or(0, Vec::len);
        let even = self.ranks.iter().all(|list| list.len() == hops);
        let alike = self.alike.filter(|_| even)?;
        let turned = |(rank, hop)| self.is_like(alike, 0, rank, hop);
        let all = (0..self.world()).flat_map(|rank| (0..hops).map(move |hop| (rank, hop)));
        Some(Alike { rotates_lanes: alike.rotates_lanes && all.into_iter().all(turned), ..alike })
    }
    fn borders(&self, index: usize) -> Vec<usize> {
        let Some(alike) = self.alike() else { return Vec::new() };
        let lanes = alike.lanes;
        let differs = |station: &usize| {
            let of = |lane| [(station - 1) * lanes + lane, station * lanes + lane];
            (0..lanes).map(of).any(|[one, other]| !self.is_like(alike, one, other, index))
        };
        (1..self.world() / lanes).filter(differs).collect()
    }
}

impl Alikes {
    /// Whether a hop of one rank is that of another, moved.
    fn is_like(&self, alike: Alike, one: usize, other: usize, index: usize) -> bool {
        let world = self.world();
        let moved = |rank: usize| {
            if rank >= world { rank } else { moved_along(alike, world, [one, other], rank) }
        };
        let block = |block: Block| Block { owner: moved(block.owner), ..block };
        let moves = |list: &[Move], key: fn(&Move) -> usize| {
            let moved = |m: &Move| {
                let Move { from, to, hops, .. } = *m;
                Move { block: block(m.block), from: moved(from), to: moved(to), hops }
            };
            let mut list: Vec<Move> = list.iter().map(moved).collect();
            list.sort_by_key(key);
            list
        };
        let blocks = |list: &[Block]| list.iter().map(|one| block(*one)).collect::<BTreeSet<_>>();
        let tile = |tile: TilePlan| (block(tile.queries), block(tile.keys));
        let (a, b) = (&self.ranks[one][index], &self.ranks[other][index]);
        let same = |list: &[Move], key: fn(&Move) -> usize| {
            let mut list = list.to_vec();
            list.sort_by_key(key);
            list
        };
        let own = |list: &[Block]| list.iter().copied().collect::<BTreeSet<_>>();
        moves(&a.sends, |m| m.to) == same(&b.sends, |m| m.to)
            && moves(&a.receives, |m| m.from) == same(&b.receives, |m| m.from)
            && a.collective == b.collective
            && [(&a.zeros, &b.zeros), (&a.finishes, &b.finishes), (&a.frees, &b.frees)]
                .iter()
                .all(|(a, b)| a.len() == b.len() && blocks(a) == own(b))
            && a.tiles.iter().map(tile).collect::<Vec<_>>().len() == b.tiles.len()
            && a.tiles.iter().map(tile).collect::<BTreeSet<_>>()
                == b.tiles.iter().map(|t| (t.queries, t.keys)).collect()
    }
}

/// The rank that `rank` becomes when `one` is moved to `other`.
fn moved_along(alike: Alike, world: usize, [one, other]: [usize; 2], rank: usize) -> usize {
    let (lanes, stations) = (alike.lanes, world / alike.lanes);
    let station = (rank / lanes + stations + other / lanes - one / lanes) % stations;
    station * lanes + (rank % lanes + lanes + other % lanes - one % lanes) % lanes
}
