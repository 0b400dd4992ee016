//! What the jobs of a tile read: queries, keys, values, and which pieces of them meet.

use std::ops::Range;

use annulus_sequence::{Spans, Visibility};
use pulp::Arch;

use super::matrix::Matrix;
use super::pieces::{COLUMNS, Piece, Pieces, ROWS};
use crate::attention::sizes::{Keys, Queries};

/// What the jobs of a tile read.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub(super) sizes: Queries,
    pub(super) keys: Keys,
    pub(super) scale: f32,
    /// The vector instructions there are.
    pub(super) instructions: Arch,
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    /// By batch row, or one for all.
    visibility: &'a [Visibility],
    /// Likewise.
    pieces: Vec<Pieces>,
}

/// A piece of one query head's scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Of all batch rows' query heads.
    pub(super) head: usize,
    /// The block of query rows.
    pub(super) block: usize,
    pub(super) piece: &'a Piece,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(
        sizes: Queries,
        keys: Keys,
        scale: f32,
        [q, k, v]: [&'a [f32]; 3],
        visibility: &'a [Visibility],
    ) -> Inputs<'a> {
        let pieces = visibility.iter().map(|one| Pieces::new(&one.queries)).collect();
        Inputs { sizes, keys, scale, instructions: Arch::new(), q, k, v, visibility, pieces }
    }

    /// Query heads of all batch rows.
    pub(super) fn heads(&self) -> usize {
        self.sizes.batch * self.sizes.heads
    }

    /// Key/value heads of all batch rows.
    pub(super) fn kv_heads(&self) -> usize {
        self.sizes.batch * self.keys.heads
    }

    /// Query heads per key/value head.
    pub(super) fn group(&self) -> usize {
        self.sizes.heads / self.keys.heads
    }

    /// Blocks of query rows per head.
    pub(super) fn row_blocks(&self) -> usize {
        self.sizes.rows.div_ceil(ROWS)
    }

    /// Blocks of key columns per head.
    pub(super) fn column_blocks(&self) -> usize {
        self.keys.rows.div_ceil(COLUMNS)
    }

    /// The pieces that a block of query rows sees.
    pub(super) fn pieces(&self, head: usize, block: usize) -> &[Piece] {
        of_batch(&self.pieces, head / self.sizes.heads).of(block)
    }

    /// The pieces of all blocks of query rows, by batch row or one for all, by block of key columns.
    pub(super) fn pieces_by_columns(&self) -> Vec<Vec<Vec<(usize, &Piece)>>> {
        self.pieces.iter().map(|pieces| pieces.by_columns(self.keys.rows)).collect()
    }

    /// Where a block's query rows lie among all.
    pub(super) fn range(&self, place: Place<'_>) -> Range<usize> {
        let rows = self.block_rows(place.block);
        let start = place.head * self.sizes.rows;
        start + rows.start..start + rows.end
    }

    /// What a block's query rows see.
    pub(super) fn spans(&self, place: Place<'_>) -> &'a [Spans] {
        let visibility = of_batch(self.visibility, place.head / self.sizes.heads);
        &visibility.queries[self.block_rows(place.block)]
    }

    /// A block of query rows of `all`, which is laid out like the queries.
    pub(super) fn rows(&self, all: &'a [f32], place: Place<'_>) -> Matrix<'a> {
        let (range, dim) = (self.range(place), self.sizes.dim);
        Matrix::new(&all[range.start * dim..], range.len(), dim, dim)
    }

    /// The rows of `all`, which is laid out like the keys, that belong to the columns of a piece.
    pub(super) fn columns(&self, all: &'a [f32], place: Place<'_>) -> Matrix<'a> {
        let (columns, dim) = (&place.piece.columns, self.sizes.dim);
        let start = place.head / self.group() * self.keys.rows + columns.start;
        Matrix::new(&all[start * dim..], columns.len(), dim, dim)
    }

    fn block_rows(&self, block: usize) -> Range<usize> {
        block * ROWS..self.sizes.rows.min((block + 1) * ROWS)
    }
}

/// What belongs to a batch row, where all may share one.
pub(super) fn of_batch<T>(items: &[T], index: usize) -> &T {
    &items[index.min(items.len() - 1)]
}
