//! Row loops over a piece's scores between its products.
//!
//! Exponentials are powers of two: scores are multiplied by `scale log2 e`, and the running maximum is that of such products.
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

use std::ops::Range;

use annulus_sequence::Spans;

use super::pieces::{COLUMNS, Extent};
use crate::vector::{Leaf, Machine, PANEL};

/// The distance between rows of scores.
pub(super) const STEP: usize = COLUMNS;

/// Hides what `spans`, one per row, do not cover of `columns`, of which `seen` are there.
pub(super) fn hide(
    scores: &mut [f32],
    spans: &[Spans],
    columns: &Range<usize>,
    seen: &Range<usize>,
) {
    let local = |column: u32| (column as usize).clamp(seen.start, seen.end) - columns.start;
    for (scores, spans) in scores.chunks_mut(STEP).zip(spans) {
        let mut shown = 0;
        for span in spans.iter().filter(|span| span.start < span.end) {
            let (start, end) = (local(span.start), local(span.end));
            scores[shown.min(start)..start].fill(f32::NEG_INFINITY);
            shown = shown.max(end);
        }
        scores[shown..columns.len()].fill(f32::NEG_INFINITY);
    }
}

/// Sets rows of `columns` values to 0 outside of `extents`.
pub(super) fn clear(values: &mut [f32], extents: &[Extent], columns: usize) {
    for Extent { rows, columns: seen } in extents {
        for row in values[rows.start * STEP..rows.end * STEP].chunks_mut(STEP) {
            row[..seen.start].fill(0.0);
            row[seen.end..columns].fill(0.0);
        }
    }
}

/// Online softmax: turns scores into weights against the new running maximum, adds them to the running sum, and gives the factor that
/// rescales sum and output from the old maximum to the new, for the product that adds to the output.
#[derive(Debug)]
pub(super) struct Fold<'a> {
    /// Rows of scores, [`STEP`] apart, as many as there are running maxima.
    pub(super) scores: &'a mut [f32],
    /// The number of columns of each row, a multiple of [`PANEL`].
    pub(super) columns: usize,
    /// The factor of scores.
    pub(super) scale: f32,
    /// Maxima are rounded up to multiples of this: with 1 or more, rescaling rounds nothing. 0: they are not rounded.
    pub(super) grid: f32,
    /// The running maximum of each row, for a multiple of [`PANEL`] rows; -inf where nothing was seen.
    pub(super) maximum: &'a mut [f32],
    /// The running sum of each row.
    pub(super) sum: &'a mut [f32],
    /// Output: the factor of each row's earlier sum and output.
    pub(super) kept: &'a mut [f32],
}

impl Leaf for Fold<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let running = self
            .maximum
            .as_chunks_mut::<PANEL>()
            .0
            .iter_mut()
            .zip(self.sum.as_chunks_mut::<PANEL>().0);
        let groups = running.zip(self.kept.as_chunks_mut().0);
        for (scores, ((maximum, sum), kept)) in self.scores.chunks_mut(PANEL * STEP).zip(groups) {
            let mut shift = [0.0; PANEL];
            for (row, scores) in scores.chunks(STEP).enumerate() {
                let mut highest = highest(machine, &scores[..self.columns]) * self.scale;
                if self.grid > 0.0 {
                    highest = (highest / self.grid).ceil() * self.grid;
                }
                // A comparison, not `max`: NaN reaches the sum anyway.
                let highest = if highest > maximum[row] { highest } else { maximum[row] };
                // Where nothing was seen yet the maximum is -inf; weights against 0 are 0, and NaN stays NaN.
                shift[row] = if highest == f32::NEG_INFINITY { 0.0 } else { highest };
                kept[row] = maximum[row] - shift[row];
                maximum[row] = highest;
            }
            machine.store(machine.exp2(machine.load(kept)), kept);
            for (row, scores) in scores.chunks_mut(STEP).enumerate() {
                let scores = &mut scores[..self.columns];
                let [scale, shift] = in_reach(scores, self.scale, shift[row]);
                let weight = weigh(machine, scores, scale, shift);
                sum[row] = sum[row] * kept[row] + weight;
            }
        }
    }
}

/// Backward: scores become probabilities `p`, gradients of probabilities become those of scores, `p (dp - delta)`.
#[derive(Debug)]
pub(super) struct Differentiate<'a> {
    /// Rows of scores, [`STEP`] apart; afterwards probabilities.
    pub(super) scores: &'a mut [f32],
    /// Rows of gradients of probabilities, [`STEP`] apart; afterwards gradients of scores.
    pub(super) gradients: &'a mut [f32],
    /// The number of columns of each row, a multiple of [`PANEL`].
    pub(super) columns: usize,
    /// The factor of scores.
    pub(super) scale: f32,
    /// The number subtracted from each row's scores: the log-sum-exp to base 2, +inf in rows that see nothing.
    pub(super) shift: &'a [f32],
    /// The number subtracted from each row's gradients.
    pub(super) delta: &'a [f32],
}

impl Leaf for Differentiate<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let rows = self.scores.chunks_mut(STEP).zip(self.gradients.chunks_mut(STEP));
        for ((scores, gradients), (shift, delta)) in rows.zip(self.shift.iter().zip(self.delta)) {
            let scores = &mut scores[..self.columns];
            let [scale, shift] = in_reach(scores, self.scale, *shift);
            let (scale, shift) = (machine.splat(scale), machine.splat(-shift));
            let delta = machine.splat(*delta);
            let scores = scores.as_chunks_mut().0;
            for (score, gradient) in scores.iter_mut().zip(gradients.as_chunks_mut().0) {
                let p = machine.exp2(machine.multiply_add(machine.load(score), scale, shift));
                let centred = machine.subtract(machine.load(gradient), delta);
                machine.store(p, score);
                machine.store(machine.multiplied(p, centred), gradient);
            }
        }
    }
}

/// The sum of products of every row of two blocks, added in the order of [`crate::vector::product`]: where a row sees a single value, its
/// probability's gradient and this sum have the same bits, and their difference is 0.
#[derive(Debug)]
pub(super) struct RowProducts<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    /// The distance between rows.
    pub(super) step: usize,
    /// The sum of each row, for a multiple of [`PANEL`] rows.
    pub(super) sums: &'a mut [f32],
}

impl Leaf for RowProducts<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let rows = self.a.chunks(PANEL * self.step).zip(self.b.chunks(PANEL * self.step));
        for ((a, b), to) in rows.zip(self.sums.as_chunks_mut().0) {
            let mut sums = machine.splat(0.0);
            for d in 0..self.step {
                let column = |rows: &[f32]| -> [f32; PANEL] {
                    std::array::from_fn(|lane| rows[lane * self.step + d])
                };
                sums =
                    machine.multiply_add(machine.load(&column(a)), machine.load(&column(b)), sums);
            }
            machine.store(sums, to);
        }
    }
}

/// Adds `scale from` to `to`.
#[derive(Debug)]
pub(super) struct AddRows<'a> {
    /// Rows of `dim`, without gaps.
    pub(super) to: &'a mut [f32],
    pub(super) from: &'a [f32],
    pub(super) scale: f32,
    pub(super) dim: usize,
    /// The distance between rows of `from`.
    pub(super) step: usize,
}

impl Leaf for AddRows<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let scale = machine.splat(self.scale);
        for (to, from) in self.to.chunks_mut(self.dim).zip(self.from.chunks(self.step)) {
            let (panels, rest) = to.as_chunks_mut();
            for (to, from) in panels.iter_mut().zip(from.as_chunks().0) {
                let sum = machine.multiply_add(machine.load(from), scale, machine.load(to));
                machine.store(sum, to);
            }
            let from = &from[self.dim - rest.len()..];
            for (to, from) in rest.iter_mut().zip(from) {
                *to += self.scale * from;
            }
        }
    }
}

#[inline(always)]
fn highest<M: Machine>(machine: M, row: &[f32]) -> f32 {
    let mut maxima = machine.splat(f32::NEG_INFINITY);
    for panel in row.as_chunks().0 {
        maxima = machine.larger(maxima, machine.load(panel));
    }
    machine.highest(maxima)
}

/// From here on a rounded product is off by more than 1: what is subtracted from scores is one, or the sum of one and a logarithm.
const FAR: f32 = (1 << 24) as f32;

/// The factor of a row's scores and the number that is subtracted from their products, which together give exponents.
///
/// A product and the difference are rounded once, together. That would leave in all exponents by how much `shift` was rounded: for a far one
/// so much that every power is infinite or 0. There the scores become exponents here, from products that are rounded as `shift` was, and
/// none is above 0.
#[inline(always)]
fn in_reach(scores: &mut [f32], scale: f32, shift: f32) -> [f32; 2] {
    // Rows that see nothing have an infinite shift.
    if !(FAR..f32::INFINITY).contains(&shift.abs()) {
        return [scale, shift];
    }
    for score in scores {
        let exponent = *score * scale - shift;
        // A comparison, not `min`: NaN stays.
        *score = if exponent > 0.0 { 0.0 } else { exponent };
    }
    [1.0, 0.0]
}

/// Turns scores into weights against `shift` and returns their sum.
#[inline(always)]
fn weigh<M: Machine>(machine: M, row: &mut [f32], scale: f32, shift: f32) -> f32 {
    let (scale, shift) = (machine.splat(scale), machine.splat(-shift));
    let mut sums = machine.splat(0.0);
    for panel in row.as_chunks_mut().0 {
        let weight = machine.exp2(machine.multiply_add(machine.load(panel), scale, shift));
        machine.store(weight, panel);
        sums = machine.add(sums, weight);
    }
    machine.total(sums)
}
