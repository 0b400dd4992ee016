//! Folds keys into the online softmax of query rows, piece by piece.
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use std::ops::Range;

use annulus_sequence::Spans;

use super::drop::Drop;
use super::inputs::Source;
use super::pack::{Natural, units};
use super::pieces::{Extent, Piece, ROWS};
use super::scores::{Fold, STEP, hide};
use crate::vector::product::{self, Left, Output, Product, Right};
use crate::vector::{Machine, PANEL};

/// A worker's copy of a block of query rows in whole panels, with their unnormalized output, and by row the running maximum and sum.
#[derive(Debug, Default)]
pub(super) struct Folding {
    q: Vec<f32>,
    scores: Vec<f32>,
    pub(super) out: Vec<f32>,
    pub(super) maximum: Vec<f32>,
    pub(super) sum: Vec<f32>,
    kept: Vec<f32>,
}

/// What query rows see of a piece of keys.
pub(super) struct Meeting<'a> {
    pub(super) piece: &'a Piece,
    /// The visible columns of each query row.
    pub(super) spans: &'a [Spans],
    /// Keys in panels and values interleaved, from the piece's first on; `exist` of the values are there.
    pub(super) keys: [&'a [f32]; 2],
    pub(super) exist: usize,
    /// Elements of a row.
    pub(super) dim: usize,
    /// The factor of scores, and the number that maxima are rounded up to multiples of: see [`Fold`].
    pub(super) scale: f32,
    pub(super) grid: f32,
    pub(super) drop: Option<Drop>,
}

impl Folding {
    /// Copies query rows in.
    pub(super) fn enter<M: Machine>(
        &mut self,
        machine: M,
        q: Source<'_>,
        rows: Range<usize>,
        dim: usize,
    ) {
        let width = dim.next_multiple_of(PANEL);
        self.q.resize(ROWS * width, 0.0);
        self.out.resize(ROWS * width, 0.0);
        self.scores.resize(ROWS * STEP, 0.0);
        for by_row in [&mut self.maximum, &mut self.sum, &mut self.kept] {
            by_row.resize(ROWS, 0.0);
        }
        q.copy(machine, rows, dim, &mut self.q);
        machine.call(Natural { rows: &mut self.q, step: width, width });
    }

    /// Starts from rows that have seen nothing.
    pub(super) fn begin(&mut self) {
        self.out.fill(0.0);
        self.sum.fill(0.0);
        self.maximum.fill(f32::NEG_INFINITY);
    }

    /// Computes `scores = q kT`, folds them, and `out = kept out + weights v`.
    pub(super) fn attend<M: Machine>(&mut self, machine: M, meeting: &Meeting<'_>) {
        let &Meeting { piece, spans, keys: [k, v], exist, dim, .. } = meeting;
        let width = dim.next_multiple_of(PANEL);
        self.score(machine, piece, spans, k, width, units::<M>(dim));
        self.weigh(machine, meeting);
        for Extent { rows, columns: seen } in piece.extents(spans) {
            machine.call(Product {
                a: Left::new(&self.scores[rows.start * STEP + seen.start / M::UNIT..], STEP, 1),
                b: Right { units: &v[seen.start / M::UNIT * width..], panel: PANEL, depth: width },
                c: &mut self.out[rows.start * width..],
                step: width,
                rows: rows.len(),
                panels: width / PANEL,
                depth: units::<M>(seen.end.min(exist) - seen.start),
                onto: Output::Scaled(&self.kept[rows.start..]),
            });
        }
    }

    /// Computes the scores of the rows with the keys that they see of a piece.
    #[inline(always)]
    fn score<M: Machine>(
        &mut self,
        machine: M,
        piece: &Piece,
        spans: &[Spans],
        k: &[f32],
        width: usize,
        depth: usize,
    ) {
        for Extent { rows, columns } in piece.extents(spans) {
            machine.call(Product {
                a: Left::new(&self.q[rows.start * width..], width, 1),
                b: Right { units: &k[columns.start * depth..], panel: depth * PANEL, depth: PANEL },
                c: &mut self.scores[rows.start * STEP + columns.start..],
                step: STEP,
                rows: rows.len(),
                panels: columns.len() / PANEL,
                depth,
                onto: Output::Overwrite,
            });
        }
        if piece.is_masked() {
            hide(&mut self.scores, spans, &piece.columns, &piece.seen);
        }
    }

    /// Turns scores into weights, rescaling the running sums to new maxima.
    #[inline(always)]
    fn weigh<M: Machine>(&mut self, machine: M, meeting: &Meeting<'_>) {
        let rows = meeting.spans.len().next_multiple_of(product::ROWS);
        let (weights, columns) = (&mut self.scores[..rows * STEP], meeting.piece.width());
        machine.call(Fold {
            scores: weights,
            columns,
            scale: meeting.scale,
            grid: meeting.grid,
            maximum: &mut self.maximum,
            sum: &mut self.sum,
            kept: &mut self.kept,
        });
        if let Some(drop) = &meeting.drop {
            machine.call(drop.of(weights));
        }
        machine.call(Natural { rows: weights, step: STEP, width: columns });
    }
}
