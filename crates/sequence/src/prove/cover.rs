//! Which pairs are left to compute: for every two shards boxes of query heads by query rows by key
//! rows, from which every tile takes its own.

use super::{At, Flaw};
use crate::{Block, Coverage, Extent, Part, Schedule, TilePlan};

/// What is not computed yet, by owner of the queries, then of the keys.
#[derive(Debug)]
pub(super) struct Cover(Vec<Vec<Vec<Cuboid>>>);

/// Query heads, query rows, key rows.
type Cuboid = [Extent; 3];

impl Cover {
    pub(super) fn new(schedule: &Schedule) -> Cover {
        let owners = || 0..schedule.world();
        let all = |queries, keys| {
            let Block { heads, rows, .. } = schedule.whole(Part::Query, queries);
            let all = [heads, rows, schedule.whole(Part::KeyValue, keys).rows];
            if volume(&all) > 0 { vec![all] } else { Vec::new() }
        };
        Cover(owners().map(|q| owners().map(|k| all(q, k)).collect()).collect())
    }

    /// Takes a tile away; whether all of it was there.
    pub(super) fn take(&mut self, tile: TilePlan) -> bool {
        let TilePlan { queries, keys } = tile;
        let left = &mut self.0[queries.owner][keys.owner];
        let taken = [queries.heads, queries.rows, keys.rows];
        let mut missing = volume(&taken);
        let mut index = 0;
        while let Some(cuboid) = left.get(index) {
            let both = [0, 1, 2].map(|axis| cuboid[axis].and(taken[axis]));
            missing -= volume(&both);
            if volume(&both) == 0 {
                index += 1;
            } else {
                // What is left of it meets the tile no more.
                cut(left.swap_remove(index), both, left);
            }
        }
        missing == 0
    }

    /// Nothing that is left is visible.
    pub(super) fn check(&self, schedule: &Schedule) -> Result<(), Flaw> {
        for (q, of_keys) in self.0.iter().enumerate() {
            for (k, left) in of_keys.iter().enumerate() {
                left.iter().try_for_each(|left| check_left(schedule, [q, k], left))?;
            }
        }
        Ok(())
    }
}

fn check_left(
    schedule: &Schedule,
    [rank, owner]: [usize; 2],
    &[_, rows, columns]: &Cuboid,
) -> Result<(), Flaw> {
    let queries = schedule.positions[rank].rows(rows.range());
    let keys = schedule.positions[owner].rows(columns.range());
    if schedule.mask.coverage_of(&queries, &keys) == Coverage::Empty {
        return Ok(());
    }
    let block = Block { rows: columns, ..schedule.whole(Part::KeyValue, owner) };
    Err(Flaw::NotComputed(At { rank, hop: schedule.hops(), block }))
}

/// What is left of a cuboid without the one inside of it: slabs on both sides along one axis after
/// another.
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
