//! The pairs left to compute: for every two shards, boxes of query heads by query rows by key rows, from which every tile takes its own.

use std::ops::Range;

use super::{At, Flaw};
use crate::alike::Shift;
use crate::band::Band;
use crate::{Alike, AlikeRanks, Block, Extent, Part, Positions, Schedule, TilePlan};

/// What is not computed yet: by the symmetry class of the queries' rank, then by the distance of the keys' rank from it. `None`:
/// everything.
#[derive(Debug)]
pub(super) struct Cover {
    alike: Alike,
    left: Vec<Option<Vec<Left>>>,
    whole: Vec<[Block; 2]>,
}

/// What is left of the same pairs, at neighbouring stations of the queries.
#[derive(Clone, Debug)]
struct Left {
    stations: Range<usize>,
    cuboids: Vec<Cuboid>,
}

/// Extents of query heads, query rows and key rows.
type Cuboid = [Extent; 3];

impl Cover {
    pub(super) fn new(schedule: &Schedule, alike: Alike) -> Cover {
        let world = schedule.world();
        let whole = |rank| [Part::Query, Part::KeyValue].map(|part| schedule.whole(part, rank));
        let lanes = if alike.rotates_lanes { 1 } else { alike.lanes };
        let (left, whole) = (vec![None; lanes * world], (0..world).map(whole).collect());
        Cover { alike, left, whole }
    }

    /// Takes a tile of every rank of a group away; returns whether all of it was left.
    pub(super) fn take(&mut self, group: &AlikeRanks, tile: TilePlan) -> bool {
        let (TilePlan { queries, keys }, alike) = (tile, self.alike);
        let stations = self.whole.len() / alike.lanes;
        let (index, all) =
            (self.index(queries.owner, keys.owner), self.all(queries.owner, keys.owner));
        let taken = [queries.heads, queries.rows, keys.rows];
        let whole = || vec![Left { stations: 0..stations, cuboids: all.into_iter().collect() }];
        let left = self.left[index].get_or_insert_with(whole);
        let start = if alike.rotates_lanes { 0 } else { queries.owner / alike.lanes };
        let end = start + group.stations.len();
        // In the ring it may be two pieces.
        let pieces = [start..end.min(stations), 0..end.saturating_sub(stations)];
        pieces.into_iter().filter(|piece| !piece.is_empty()).all(|piece| {
            for at in [piece.start, piece.end] {
                part(left, at);
            }
            let inside = |one: &&mut Left| {
                piece.start <= one.stations.start && one.stations.end <= piece.end
            };
            left.iter_mut().filter(inside).all(|one| subtract(&mut one.cuboids, taken))
        })
    }

    /// Checks that nothing left is visible.
    pub(super) fn check(&self, schedule: &Schedule) -> Result<(), Flaw> {
        let band = schedule.mask.band();
        let extents: Vec<_> = schedule.positions.iter().map(Positions::extent).collect();
        let far = |q: usize, k: usize| {
            let near = |band: Band| band.touches(&extents[q], &extents[k]);
            extents[q].is_empty() || extents[k].is_empty() || !band.is_none_or(near)
        };
        for (index, left) in self.left.iter().enumerate() {
            let stations = 0..self.whole.len() / self.alike.lanes;
            let untouched = || vec![Left { stations, cuboids: vec![[Extent::all(1); 3]] }];
            let all = left.is_none().then(untouched);
            let left = left.as_deref().or(all.as_deref()).unwrap_or_default();
            for Left { stations, cuboids } in left.iter().filter(|one| !one.cuboids.is_empty()) {
                for [q, k] in self.pairs(index, stations).filter(|[q, k]| !far(*q, *k)) {
                    let whole = all.as_ref().and_then(|_| self.all(q, k));
                    let cuboids =
                        whole.as_slice().iter().chain(cuboids.iter().filter(|_| all.is_none()));
                    for cuboid in cuboids {
                        check_left(schedule, band, [q, k], cuboid)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The ranks of queries and of keys that share entry `index`, for some stations of the queries.
    fn pairs(&self, index: usize, stations: &Range<usize>) -> impl Iterator<Item = [usize; 2]> {
        let (Alike { lanes, rotates_lanes }, world) = (self.alike, self.whole.len());
        let (first, place) = (index / world, index % world);
        let by = Shift { stations: place / lanes, lanes: place % lanes };
        let step = if rotates_lanes { 1 } else { lanes };
        let queries = (stations.start * lanes + first..stations.end * lanes).step_by(step);
        queries.map(move |q| [q, self.alike.moved(world, q, by)])
    }

    /// The entries of pairs with queries of a rank.
    fn row(&self, queries: usize) -> Range<usize> {
        let lane = if self.alike.rotates_lanes { 0 } else { queries % self.alike.lanes };
        lane * self.whole.len()..(lane + 1) * self.whole.len()
    }
    fn index(&self, queries: usize, keys: usize) -> usize {
        let by = self.alike.shift(self.whole.len(), queries, keys);
        self.row(queries).start + by.stations * self.alike.lanes + by.lanes
    }
    /// All pairs of two ranks, if there are any.
    fn all(&self, queries: usize, keys: usize) -> Option<Cuboid> {
        let ([q, _], [_, k]) = (self.whole[queries], self.whole[keys]);
        let all = [q.heads, q.rows, k.rows];
        (volume(&all) > 0).then_some(all)
    }
}

/// Splits what is left at a station.
fn part(left: &mut Vec<Left>, at: usize) {
    let index = left.partition_point(|one| one.stations.end <= at);
    if left.get(index).is_some_and(|one| one.stations.start < at) {
        let mut rest = left[index].clone();
        rest.stations.start = at;
        left[index].stations.end = at;
        left.insert(index + 1, rest);
    }
}

/// Takes a cuboid away; returns whether all of it was left.
fn subtract(left: &mut Vec<Cuboid>, taken: Cuboid) -> bool {
    let mut missing = volume(&taken);
    let mut index = 0;
    while let Some(cuboid) = left.get(index) {
        let both = [0, 1, 2].map(|axis| cuboid[axis].and(taken[axis]));
        missing -= volume(&both);
        if volume(&both) == 0 {
            index += 1;
        } else {
            // What is left of the cuboid no longer meets the tile.
            cut(left.swap_remove(index), both, left);
        }
    }
    missing == 0
}

fn check_left(
    schedule: &Schedule,
    band: Option<Band>,
    [rank, owner]: [usize; 2],
    &[_, rows, columns]: &Cuboid,
) -> Result<(), Flaw> {
    let [queries, keys] = [rank, owner].map(|rank| &schedule.positions[rank]);
    let whole = rows.len() == queries.tokens() && columns.len() == keys.tokens();
    let sees = if whole {
        schedule.mask.sees(band, queries, keys)
    } else {
        let (queries, keys) = (queries.rows(rows.range()), keys.rows(columns.range()));
        schedule.mask.sees(band, &queries, &keys)
    };
    if !sees {
        return Ok(());
    }
    let block = Block { rows: columns, ..schedule.whole(Part::KeyValue, owner) };
    Err(Flaw::NotComputed(At { rank, hop: schedule.hops(), block }))
}

/// Adds what is left of a cuboid without the one inside it: slabs on both sides, axis by axis.
fn cut(mut cuboid: Cuboid, inside: Cuboid, rest: &mut Vec<Cuboid>) {
    for axis in 0..3 {
        let (all, kept) = (cuboid[axis], inside[axis]);
        for side in
            [Extent { start: all.start, end: kept.start }, Extent { start: kept.end, end: all.end }]
        {
            if !side.is_empty() {
                let mut slab = cuboid;
                slab[axis] = side;
                rest.push(slab);
            }
        }
        cuboid[axis] = kept;
    }
}

fn volume(cuboid: &Cuboid) -> u128 {
    cuboid.iter().map(|extent| extent.len() as u128).product()
}
