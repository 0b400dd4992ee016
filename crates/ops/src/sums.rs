//! Sums in a fixed order: over rows, and within a row.

use std::ops::Range;

use annulus_machine::blocks::SUMMED_ROWS as ROWS;
use candle_core::{DType, Result, Shape, Tensor};

use crate::Pool;
use crate::order_free::Sums;
use crate::rows::tensor;

/// The number of independent partial sums of a row: a vector register or two, whatever the processor.
const LANES: usize = 32;

/// Partial sums of vectors of one width, each over some rows, still to be added up.
pub(crate) struct Partials {
    sums: Vec<f32>,
    width: usize,
}

/// The sums over `rows` rows of vectors of `width`, of so many rows each that nothing depends on the workers: `add(rows, sums)` adds
/// some rows, in order, to `sums`.
pub(crate) fn sum_rows(
    pool: &Pool,
    rows: usize,
    width: usize,
    add: impl Fn(Range<usize>, &mut [f32]) + Send + Sync,
) -> Partials {
    let together = together(pool);
    let ranges = (0..rows).step_by(together).map(|first| first..rows.min(first + together));
    partials(pool, width, ranges, add)
}

/// The sums over `rows` as [`sum_rows`] makes them, where every row is also written to its place in `output`, rows of `width`: `add(rows,
/// output, sums)`.
pub(crate) fn sum_rows_and(
    pool: &Pool,
    output: &mut [f32],
    width: usize,
    add: impl Fn(Range<usize>, &mut [f32], &mut [f32]) + Send + Sync,
) -> Partials {
    let together = together(pool);
    let pieces = output.chunks_mut(together * width.max(1)).enumerate();
    partials(pool, width, pieces, |(index, piece), sums| {
        let first = index * together;
        add(first..first + piece.len() / width, piece, sums);
    })
}

/// The number of rows that are summed in f32, one after another.
fn together(pool: &Pool) -> usize {
    pool.block().unwrap_or(ROWS)
}

/// Partial sums: what `add` adds to zeros for every piece.
fn partials<T: Send>(
    pool: &Pool,
    width: usize,
    pieces: impl ExactSizeIterator<Item = T> + Send,
    add: impl Fn(T, &mut [f32]) + Send + Sync,
) -> Partials {
    let mut sums = vec![0.0; pieces.len() * width];
    let jobs = pieces.zip(sums.chunks_mut(width.max(1)));
    pool.each(jobs, |(piece, sums)| add(piece, sums));
    Partials { sums, width }
}

impl Partials {
    /// The total of all partial sums, in f64, in order.
    fn total(&self) -> Vec<f32> {
        let mut totals = vec![0.0_f64; self.width];
        for sums in self.sums.chunks_exact(self.width.max(1)) {
            totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(*sum));
        }
        totals.into_iter().map(|total| total as f32).collect()
    }

    /// The total as a tensor of this dtype; where the pool's sums are order-free, as a table of those.
    pub(crate) fn tensor(self, pool: &Pool, shape: &Shape, dtype: DType) -> Result<Tensor> {
        if pool.block().is_none() {
            return tensor(pool, self.total(), shape, dtype);
        }
        let mut sums = Sums::of(self.width);
        for partial in self.sums.chunks_exact(self.width.max(1)) {
            sums.add(pool, partial);
        }
        sums.tensor()
    }
}

/// Folds slices of equal length into 32 interleaved values from `start` by `fold(value, elements)`, and those pairwise by `join`: an f32
/// sum is then close to one in f64, and becomes vector instructions.
#[inline(always)]
pub(crate) fn fold_lanes<const N: usize>(
    slices: [&[f32]; N],
    start: f32,
    fold: impl Fn(f32, [f32; N]) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let (whole, rest) = slices[0].as_chunks::<LANES>();
    for block in 0..whole.len() {
        let mut blocks = [&[0.0; LANES]; N];
        for (block_of_slice, slice) in blocks.iter_mut().zip(slices) {
            *block_of_slice = &slice.as_chunks().0[block];
        }
        for (lane, value) in lanes.iter_mut().enumerate() {
            let mut elements = [0.0; N];
            for (element, block) in elements.iter_mut().zip(blocks) {
                *element = block[lane];
            }
            *value = fold(*value, elements);
        }
    }
    for (lane, value) in lanes[..rest.len()].iter_mut().enumerate() {
        let mut elements = [0.0; N];
        for (element, slice) in elements.iter_mut().zip(slices) {
            *element = slice[whole.len() * LANES + lane];
        }
        *value = fold(*value, elements);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum by [`fold_lanes`].
#[inline(always)]
pub(crate) fn sum_lanes<const N: usize>(
    slices: [&[f32]; N],
    fold: impl Fn(f32, [f32; N]) -> f32,
) -> f32 {
    fold_lanes(slices, 0.0, fold, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_sums_do_not_depend_on_the_workers() {
        let value = |row: usize, column: usize| ((row * 31 + column * 17) % 101) as f32 / 7.0;
        for rows in [0, 1, 128, 1001] {
            let sums = |workers| {
                sum_rows(&Pool::new(workers), rows, 3, |rows, sums| {
                    for row in rows {
                        sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += value(row, i));
                    }
                })
                .total()
            };
            let wanted = |column| (0..rows).map(|row| f64::from(value(row, column))).sum::<f64>();
            for (column, sum) in sums(1).into_iter().enumerate() {
                assert!((f64::from(sum) - wanted(column)).abs() <= 1e-6 * wanted(column));
            }
            assert!((2..=4).all(|workers| sums(workers) == sums(1)));
        }
    }

    #[test]
    fn lanes_see_every_element_once() {
        for len in [0_usize, 1, 31, 32, 33, 100] {
            let numbers: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let sum = sum_lanes([&numbers, &numbers], |sum, [a, b]| sum + a + b);
            assert_eq!(sum as usize, len * len.saturating_sub(1));
            let most = fold_lanes([&numbers], -1.0, |a, [b]| a.max(b), f32::max);
            assert_eq!(most as i64, len as i64 - 1);
        }
    }
}
