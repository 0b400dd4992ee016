//! What is done to a piece's scores between the matrix products, row by row.
//!
//! A piece's scores lie in rows of [`STEP`] floats; what is past the piece's columns is -inf before the exponential and
//! 0 after it, up to a whole number of vectors.
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

use std::ops::Range;

use annulus_sequence::Spans;
use pulp::{Simd, WithSimd};

use super::matrix::Matrix;
use super::pieces::{COLUMNS, ROWS};
use crate::exp::exp;

/// The distance between rows of scores.
pub(super) const STEP: usize = COLUMNS;
/// Floats of the widest vector: sums and maxima are kept in so many parts.
const LANES: usize = 16;

/// Room for the scores of a piece.
#[derive(Debug)]
pub(super) struct Scores(pub(super) Vec<f32>);

impl Default for Scores {
    fn default() -> Scores {
        Scores(vec![0.0; ROWS * STEP])
    }
}

impl Scores {
    /// The first rows and columns.
    pub(super) fn matrix(&self, rows: usize, columns: usize) -> Matrix<'_> {
        Matrix::new(&self.0, rows, columns, STEP)
    }
}

/// Hides what `spans`, one per row, do not cover of `columns`.
pub(super) fn hide(scores: &mut [f32], spans: &[Spans], columns: &Range<usize>) {
    let local = |column: u32| (column as usize).clamp(columns.start, columns.end) - columns.start;
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

/// Online softmax: scores become weights against the new running maximum; the running sum takes them in; sum and output so
/// far are scaled from the old maximum to the new.
#[derive(Debug)]
pub(super) struct Fold<'a> {
    /// Rows of scores, [`STEP`] apart.
    pub(super) scores: &'a mut [f32],
    /// How many columns of each count.
    pub(super) columns: usize,
    /// The running maximum, by row; -inf where nothing was seen.
    pub(super) maximum: &'a mut [f32],
    /// The running sum, by row.
    pub(super) sum: &'a mut [f32],
    /// The unnormalised output, by row.
    pub(super) out: &'a mut [f32],
    /// The length of a row of output.
    pub(super) dim: usize,
}

impl WithSimd for Fold<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.scores.chunks_mut(STEP).zip(self.out.chunks_mut(self.dim));
        let running = self.maximum.iter_mut().zip(self.sum.iter_mut());
        for ((scores, out), (maximum, sum)) in rows.zip(running) {
            let scores = padded(scores, self.columns);
            let highest = larger(*maximum, maximum_of(scores));
            // Where nothing is seen up to now the maximum is -inf; weights against 0 are 0, and NaN stays NaN.
            let shift = if highest == f32::NEG_INFINITY { 0.0 } else { highest };
            let kept = exp(*maximum - shift);
            *sum = *sum * kept + weigh(scores, shift);
            *maximum = highest;
            if kept < 1.0 {
                for value in out {
                    *value *= kept;
                }
            }
        }
    }
}

/// Backward: scores become probabilities `p`, gradients of probabilities become those of scores, `p (dp - delta)`.
#[derive(Debug)]
pub(super) struct Differentiate<'a> {
    /// Rows of scores, [`STEP`] apart; afterwards of probabilities.
    pub(super) scores: &'a mut [f32],
    /// Rows of gradients of probabilities, [`STEP`] apart; afterwards of gradients of scores.
    pub(super) gradients: &'a mut [f32],
    /// How many columns of each count.
    pub(super) columns: usize,
    /// What is subtracted from scores, by row: the log-sum-exp, +inf in rows that see nothing.
    pub(super) shift: &'a [f32],
    /// What is subtracted from gradients, by row.
    pub(super) delta: &'a [f32],
}

impl WithSimd for Differentiate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.scores.chunks_mut(STEP).zip(self.gradients.chunks_mut(STEP));
        for ((scores, gradients), (shift, delta)) in rows.zip(self.shift.iter().zip(self.delta)) {
            let scores = &mut scores[..self.columns];
            for (score, gradient) in scores.iter_mut().zip(gradients) {
                *score = exp(*score - shift);
                *gradient = *score * (*gradient - delta);
            }
        }
    }
}

/// The row up to a whole number of vectors, -inf past `columns`.
#[inline(always)]
fn padded(row: &mut [f32], columns: usize) -> &mut [[f32; LANES]] {
    let end = columns.next_multiple_of(LANES);
    row[columns..end].fill(f32::NEG_INFINITY);
    row[..end].as_chunks_mut().0
}

#[inline(always)]
fn maximum_of(row: &[[f32; LANES]]) -> f32 {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for chunk in row {
        for (maximum, &value) in maxima.iter_mut().zip(chunk) {
            *maximum = larger(*maximum, value);
        }
    }
    maxima.into_iter().fold(f32::NEG_INFINITY, larger)
}

/// Turns scores into weights against `shift` and returns their sum.
#[inline(always)]
fn weigh(row: &mut [[f32; LANES]], shift: f32) -> f32 {
    let mut sums = [0.0; LANES];
    for chunk in row {
        for (value, sum) in chunk.iter_mut().zip(&mut sums) {
            *value = exp(*value - shift);
            *sum += *value;
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for index in 0..width {
            sums[index] += sums[index + width];
        }
        width /= 2;
    }
    sums[0]
}

/// The larger of two numbers as one instruction; unlike `f32::max` it makes no promise about NaN, which reaches the sum anyway.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
