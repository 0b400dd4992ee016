//! Views: tiles in the form that kernels take, with at most two intervals for every row and column.
//!
//! A mask that shows a row more than that is cut into views: of all rows, or of the rows of one
//! residue class, which are progressions. Every visible pair is in one view.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::{once, repeat_n, zip};
use std::ops::Range;

use crate::mask::{Class, Piece, Shards, Sight};
use crate::{Coverage, Mask, Positions, Rows, Visibility};

/// A part of a tile: some of its rows by some of its columns, each with a constant stride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The query rows.
    pub queries: Side,
    /// The key rows.
    pub keys: Side,
    /// The visibility between these rows, by their indices: one for all batch rows, or one for each that the mask tells apart. Something is
    /// visible in at least one.
    pub visibility: Vec<Visibility>,
}

/// Some rows of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// The rows of the shard.
    pub rows: Rows,
    /// Their positions.
    pub positions: Positions,
    /// The residue class of the positions.
    class: Class,
}

impl View {
    /// The views of keys `k` from queries `q`: every visible pair is in exactly one of them.
    ///
    /// The query rows of each are a side of [`Side::of_queries`].
    ///
    /// # Panics
    /// When a side has more rows than a span can number.
    pub fn all(mask: &Mask, q: &Positions, k: &Positions) -> Vec<View> {
        let sides = Side::of_queries(mask, q);
        sides.iter().flat_map(|side| side.views(mask, k, None)).collect()
    }
}

/// The rows of each strict block.
fn blocks(positions: &Positions, block: usize) -> Vec<Range<usize>> {
    let all: Vec<usize> = positions.iter().map(|position| position / block).collect();
    let mut start = 0;
    let rows = |same: &[usize]| {
        start += same.len();
        start - same.len()..start
    };
    all.chunk_by(|a, b| a == b).map(rows).collect()
}

impl Side {
    /// The query rows that views of a shard may have under a mask: all of them first, and under strided patterns also the residue classes
    /// of the strides. A kernel's state belongs to one of these; where a row is in several, their results form one softmax.
    pub fn of_queries(mask: &Mask, q: &Positions) -> Vec<Side> {
        mask.moduli().into_iter().flat_map(|modulus| sides(q, modulus)).collect()
    }

    /// As [`Side::of_queries`], with `block` the sides of every strict block of so many positions: what two blocks see of each other is
    /// cut into the same views on any rank.
    pub fn cut(mask: &Mask, q: &Positions, block: Option<usize>) -> Vec<Side> {
        let Some(block) = block else { return Side::of_queries(mask, q) };
        let of_block = |rows: Range<usize>| {
            let sides = Side::of_queries(mask, &q.rows(rows.clone()));
            sides.into_iter().map(move |side| side.moved(rows.start))
        };
        blocks(q, block).into_iter().flat_map(of_block).collect()
    }

    /// The views of keys `k` from this side of the queries, each made when it is asked for: together they may take far more memory than
    /// one. With `block`, keys are cut at strict blocks.
    ///
    /// # Panics
    /// When a side has more rows than a span can number.
    pub fn views<'a>(
        &'a self,
        mask: &'a Mask,
        k: &'a Positions,
        block: Option<usize>,
    ) -> impl Iterator<Item = View> + 'a {
        let parts = block.map_or_else(|| once(0..k.tokens()).collect(), |block| blocks(k, block));
        parts.into_iter().flat_map(move |rows| {
            let part = k.rows(rows.clone());
            let classes = self.classes(mask, &part).into_iter();
            classes.flat_map(move |(class, pieces)| {
                let keys = part.of_residue(class.modulus, class.residue);
                let (start, pieces) = (rows.start, repeat_n(pieces, keys.len()));
                zip(keys, pieces).flat_map(move |((rows, positions), pieces)| {
                    let keys = Side { rows, positions, class }.moved(start);
                    packed(self, keys, pieces)
                })
            })
        })
    }

    /// The pieces that begin at this side, of every batch row, by the class of their keys.
    fn classes(&self, mask: &Mask, k: &Positions) -> BTreeMap<Class, Vec<Vec<Piece>>> {
        let shards = Shards { q: &self.positions, k };
        let mut classes: BTreeMap<Class, Vec<Vec<Piece>>> = BTreeMap::new();
        for row in 0..mask.rows() {
            let sight = Sight::new(mask, row);
            for piece in sight.pieces(shards).filter(|piece| piece.alike == self.class.modulus) {
                if let Some(class) = piece.keys_for(self.class.residue) {
                    let rows =
                        classes.entry(class).or_insert_with(|| vec![Vec::new(); mask.rows()]);
                    rows[row].push(piece);
                }
            }
        }
        classes
    }

    /// This side of a shard as one of another, in which that shard begins at row `start`.
    fn moved(self, start: usize) -> Side {
        let rows = Rows { offset: self.rows.offset + start, ..self.rows };
        Side { rows, ..self }
    }
}

/// A shard split by residues; residues without a row are skipped.
fn sides(positions: &Positions, modulus: usize) -> Vec<Side> {
    let residues: BTreeSet<usize> = if modulus <= positions.tokens() {
        (0..modulus).collect()
    } else {
        positions.iter().map(|position| position % modulus).collect()
    };
    let of_residue = |residue| {
        let class = Class { modulus, residue };
        let parts = positions.of_residue(modulus, residue).into_iter();
        parts.map(move |(rows, positions)| Side { rows, positions, class })
    };
    residues.into_iter().flat_map(of_residue).collect()
}

/// The pieces of all batch rows in few views, filled greedily.
fn packed(queries: &Side, keys: Side, mut rows: Vec<Vec<Piece>>) -> impl Iterator<Item = View> {
    std::iter::from_fn(move || {
        if rows.iter().all(Vec::is_empty) {
            return None;
        }
        let [q, k] = [&queries.positions, &keys.positions];
        let visibility: Vec<_> = rows.iter_mut().map(|pieces| layer(pieces, q, k)).collect();
        // A view that shows nothing had room for all that was left.
        let any = visibility.iter().any(|one| one.coverage != Coverage::Empty);
        any.then(|| View { queries: queries.clone(), keys: keys.clone(), visibility })
    })
}

/// Takes out as many of the pieces as one view has room for, in order.
fn layer(pieces: &mut Vec<Piece>, q: &Positions, k: &Positions) -> Visibility {
    let mut layer = Visibility::nothing(q.tokens(), k.tokens());
    pieces.retain(|piece| !layer.add(piece, q, k));
    layer.settle();
    layer
}
