//! Disjoint pieces of what a mask shows.

use std::ops::Range;

use super::FAR;
use crate::Positions;
use crate::band::Band;
use crate::positions::solve;

/// The pairs of a rectangle of positions that lie between two diagonals and have certain residues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
    pub(crate) band: Band,
    /// Query and key have equal residues modulo this; 1: always.
    pub(crate) alike: usize,
    /// The keys of the piece.
    pub(crate) class: Class,
}

/// The queries and keys of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shards<'a> {
    pub(crate) q: &'a Positions,
    pub(crate) k: &'a Positions,
}

impl<'a> Shards<'a> {
    /// The intervals of a partition that contain a query and a key of `piece`; `around` returns the interval of a position. Skips over
    /// those with only one of the two.
    pub(super) fn meeting<F: Fn(usize) -> Range<usize>>(
        self,
        piece: Piece,
        around: F,
    ) -> impl Iterator<Item = Range<usize>> + use<'a, F> {
        let next = |positions: &Positions, range: &Range<usize>, from: usize| {
            let first = positions.rank_of(range.start.max(from));
            positions.at(first).filter(|position| *position < range.end)
        };
        let mut from = 0;
        std::iter::from_fn(move || {
            loop {
                let interval = around(next(self.q, &piece.queries, from)?);
                let key = next(self.k, &piece.keys, interval.start)?;
                if key < interval.end {
                    from = interval.end;
                    return Some(interval);
                }
                from = around(key).start;
            }
        })
    }
}

/// The positions with residue `residue` modulo `modulus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    pub(crate) modulus: usize,
    pub(crate) residue: usize,
}

impl Class {
    /// The class of every position.
    pub(crate) const ALL: Class = Class { modulus: 1, residue: 0 };

    /// The positions in both classes, if there are any (the Chinese remainder theorem).
    pub(crate) fn and(self, other: Class) -> Option<Class> {
        let (to, from) = (other.residue % other.modulus, self.residue % other.modulus);
        let gap = if to >= from { to - from } else { other.modulus - (from - to) };
        let (steps, period) = solve(self.modulus % other.modulus, gap, other.modulus)?;
        let residue = self.modulus.checked_mul(steps)?.checked_add(self.residue)?;
        // There is no position so far.
        let modulus = self.modulus.saturating_mul(period).min(FAR);
        (residue < modulus).then_some(Class { modulus, residue })
    }
}

/// The most rows that are counted faster one by one than by splitting shards.
const FEW_ROWS: usize = 8;

impl Piece {
    /// The part of the piece in a smaller rectangle, if there is any.
    pub(super) fn inside(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
        band: Band,
    ) -> Option<Piece> {
        let queries = both(&self.queries, queries);
        let keys = both(&self.keys, keys);
        let band = self.band.and(band);
        let any = !queries.is_empty() && !keys.is_empty() && band.touches(&queries, &keys);
        any.then_some(Piece { queries, keys, band, ..*self })
    }
    /// The keys of queries with `residue` modulo a multiple of [`Piece::alike`].
    pub(crate) fn keys_for(&self, residue: usize) -> Option<Class> {
        self.class.and(Class { modulus: self.alike, residue: residue % self.alike })
    }
    /// The number of the piece's pairs between these shards.
    pub(super) fn pairs(&self, shards: Shards<'_>) -> u64 {
        self.parts(shards, |parts| parts.sum())
    }
    /// Whether any of the piece's pairs is between these shards.
    pub(super) fn is_seen(&self, shards: Shards<'_>) -> bool {
        self.parts(shards, |mut parts| Iterator::any(&mut parts, |pairs| pairs > 0))
    }

    /// The piece's pairs between these shards, split by residue.
    fn parts<T>(
        &self,
        Shards { q, k }: Shards<'_>,
        gather: impl FnOnce(&mut dyn Iterator<Item = u64>) -> T,
    ) -> T {
        let whole = self.alike == 1 && self.class == Class::ALL;
        let rows = q.rows_within(self.queries.clone());
        if whole && rows.len() <= FEW_ROWS {
            let seen = |query| k.rows_within(self.band.seen_from(query, &self.keys)).len() as u64;
            return gather(&mut rows.filter_map(|row| q.at(row)).map(seen));
        }
        let (q, k) = (q.rows(rows), k.within(self.keys.clone()));
        if whole {
            return gather(&mut std::iter::once(self.band.pairs(&q, &k)));
        }
        if self.class == Class::ALL && q.are_intervals() && k.are_intervals() {
            let runs = q.runs().iter().flat_map(|q| k.runs().iter().map(move |k| (*q, *k)));
            return gather(&mut runs.map(|(q, k)| self.band.pairs_alike(q, k, self.alike)));
        }
        let of_group = |(residue, q): (usize, Positions)| self.pairs_of_class(residue, &q, &k);
        gather(&mut self.groups(&q).map(of_group))
    }

    /// The queries, grouped by residue modulo [`Piece::alike`].
    fn groups<'a>(&self, q: &'a Positions) -> Box<dyn Iterator<Item = (usize, Positions)> + 'a> {
        let alike = self.alike;
        if alike == 1 {
            return Box::new(std::iter::once((0, q.clone())));
        }
        if alike > q.tokens() {
            return Box::new((0..q.tokens()).map(|row| {
                let one = q.rows(row..row + 1);
                (one.extent().start, one)
            }));
        }
        Box::new((0..alike).flat_map(move |residue| {
            q.of_residue(alike, residue).into_iter().map(move |(_, part)| (residue, part))
        }))
    }
    fn pairs_of_class(&self, residue: usize, q: &Positions, k: &Positions) -> u64 {
        let Some(Class { modulus, residue }) = self.keys_for(residue) else { return 0 };
        k.of_residue(modulus, residue).iter().map(|(_, k)| self.band.pairs(q, k)).sum()
    }
}

/// The intersection of two ranges, which may be empty.
pub(super) fn both(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let (start, end) = (a.start.max(b.start), a.end.min(b.end));
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_meet_where_residues_agree() {
        let classes = (1..7).flat_map(|m| (0..m).map(move |r| Class { modulus: m, residue: r }));
        for (a, b) in classes.clone().flat_map(|a| classes.clone().map(move |b| (a, b))) {
            let holds = |c: Class, n: usize| n % c.modulus == c.residue;
            let slow: Vec<usize> = (0..60).filter(|n| holds(a, *n) && holds(b, *n)).collect();
            let fast = a.and(b).map(|both| (0..60).filter(|n| holds(both, *n)).collect());
            assert_eq!(fast.unwrap_or_else(Vec::new), slow, "{a:?} {b:?}");
        }
    }
}
