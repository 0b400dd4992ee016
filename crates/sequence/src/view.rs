//! Views: tiles in the form that kernels take, with at most two intervals for every row and column.
//!
//! A mask that shows a row more than that is cut into views: of all rows, or of the rows of one
//! residue class, which are progressions. Every visible pair is in one view.

use std::collections::{BTreeMap, BTreeSet};
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
}

impl View {
    /// The views of keys `k` from queries `q`: every visible pair is in exactly one of them.
    ///
    /// The query rows of each are a side of [`Side::of_queries`].
    ///
    /// # Panics
    /// When a side has more rows than a span can number.
    pub fn all(mask: &Mask, q: &Positions, k: &Positions) -> Vec<View> {
        let pieces: Vec<Vec<Piece>> =
            (0..mask.rows()).map(|row| Sight::new(mask, row).pieces(Shards { q, k })).collect();
        let moduli: BTreeSet<usize> = pieces.iter().flatten().map(|piece| piece.alike).collect();
        let sides = moduli.into_iter().flat_map(|modulus| sides(q, modulus));
        sides.flat_map(|side| views_of(&side, &pieces, k)).collect()
    }
}

impl View {
    /// The views of keys `k` from queries `q`, cut at strict blocks of `block` positions: what two blocks see of each other is cut into the
    /// same views on any rank.
    pub fn by_blocks(mask: &Mask, q: &Positions, k: &Positions, block: usize) -> Vec<View> {
        let (queries, keys) = (blocks(q, block), blocks(k, block));
        let pairs = queries.iter().flat_map(|rows| keys.iter().map(move |columns| (rows, columns)));
        let of_pair = |(rows, columns): (&Range<usize>, &Range<usize>)| {
            let mut views = View::all(mask, &q.rows(rows.clone()), &k.rows(columns.clone()));
            for view in &mut views {
                view.queries.rows.offset += rows.start;
                view.keys.rows.offset += columns.start;
            }
            views
        };
        pairs.flat_map(of_pair).collect()
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
        mask.moduli()
            .into_iter()
            .flat_map(|modulus| sides(q, modulus))
            .map(|one| one.side)
            .collect()
    }
}

/// The rows of a residue class that form one progression.
#[derive(Debug)]
struct Thinned {
    class: Class,
    side: Side,
}

/// A shard split by residues.
fn sides(positions: &Positions, modulus: usize) -> Vec<Thinned> {
    // Residues without a row are skipped.
    let residues: BTreeSet<usize> = if modulus <= positions.tokens() {
        (0..modulus).collect()
    } else {
        positions.iter().map(|position| position % modulus).collect()
    };
    let of_residue = |residue| {
        let class = Class { modulus, residue };
        let parts = positions.of_residue(modulus, residue).into_iter();
        parts.map(move |(rows, positions)| Thinned { class, side: Side { rows, positions } })
    };
    residues.into_iter().flat_map(of_residue).collect()
}

/// The views of keys from queries of one residue.
fn views_of(queries: &Thinned, rows: &[Vec<Piece>], k: &Positions) -> Vec<View> {
    let mut classes: BTreeMap<Class, Vec<Vec<&Piece>>> = BTreeMap::new();
    for (row, pieces) in rows.iter().enumerate() {
        for piece in pieces.iter().filter(|piece| piece.alike == queries.class.modulus) {
            if let Some(class) = piece.keys_for(queries.class.residue) {
                classes.entry(class).or_insert_with(|| vec![Vec::new(); rows.len()])[row]
                    .push(piece);
            }
        }
    }
    let mut views = Vec::new();
    for (class, pieces) in classes {
        for (rows, positions) in k.of_residue(class.modulus, class.residue) {
            views.extend(packed(&queries.side, &Side { rows, positions }, &pieces));
        }
    }
    views
}

/// The pieces of all batch rows in few views, filled greedily.
fn packed(queries: &Side, keys: &Side, rows: &[Vec<&Piece>]) -> Vec<View> {
    let [q, k] = [&queries.positions, &keys.positions];
    let nothing = || Visibility::nothing(q.tokens(), k.tokens());
    let layers: Vec<Vec<Visibility>> = rows
        .iter()
        .map(|pieces| {
            let mut layers: Vec<Visibility> = Vec::new();
            for piece in pieces {
                if !layers.iter_mut().any(|layer| layer.add(piece, q, k)) {
                    let mut layer = nothing();
                    layer.add(piece, q, k);
                    layers.push(layer);
                }
            }
            layers.iter_mut().for_each(Visibility::settle);
            layers.retain(|layer| layer.coverage != Coverage::Empty);
            layers
        })
        .collect();
    let most = layers.iter().map(Vec::len).max().unwrap_or(0);
    let mut layers: Vec<_> = layers.into_iter().map(Vec::into_iter).collect();
    let view = |_| {
        let visibility = layers.iter_mut().map(|row| row.next().unwrap_or_else(nothing)).collect();
        View { queries: queries.clone(), keys: keys.clone(), visibility }
    };
    (0..most).map(view).collect()
}
