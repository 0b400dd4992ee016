//! Adds partial results of blocks to order-free sums.
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

use crate::order_free::{self, WIDTH, add_one, length, spoil};
use crate::vector::{Leaf, Machine};

/// The largest maximum, in units of the bins' width, for which there are bins.
const MOST: f32 = (1 << 19) as f32;

/// Adds the sums of weights of a block of keys, against its own maxima, to the rows' sums, and says by how many bins the maxima move.
pub(super) struct AddWeights<'a> {
    /// The order-free sum of each row's weights.
    pub(super) sums: &'a mut [u32],
    /// The block's sums of weights and maxima: multiples of the bins' width, -inf where nothing is seen.
    pub(super) weights: &'a [f32],
    pub(super) maxima: &'a [f32],
    /// Output: the maxima in units of that width.
    pub(super) shifts: &'a mut [i32],
}

impl Leaf for AddWeights<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, _: M) {
        let rows = self.sums.chunks_mut(length(1)).zip(self.shifts);
        for ((sum, shift), (weight, most)) in rows.zip(self.weights.iter().zip(self.maxima)) {
            let most = *most / WIDTH as f32;
            *shift = 0;
            if most == f32::NEG_INFINITY {
                continue;
            }
            if most.abs() > MOST {
                spoil(sum);
            }
            *shift = most as i32;
            add_one(sum, *weight, *shift);
        }
    }
}

/// Adds rows of partial results to order-free sums.
pub(super) struct AddRows<'a> {
    /// Rows of `dim` sums.
    pub(super) sums: &'a mut [u32],
    /// Rows of `dim` numbers, `step` apart.
    pub(super) numbers: &'a [f32],
    pub(super) step: usize,
    pub(super) dim: usize,
    pub(super) factor: f32,
    /// The power of 2^13 that multiplies each row's numbers; empty: 1.
    pub(super) shifts: &'a [i32],
}

impl Leaf for AddRows<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let rows = self.sums.chunks_mut(length(self.dim)).zip(self.numbers.chunks(self.step));
        for (index, (row, numbers)) in rows.enumerate() {
            let shift = self.shifts.get(index).copied().unwrap_or(0);
            let numbers = &numbers[..self.dim];
            order_free::Add { row, numbers, factor: self.factor, shift }.run(machine);
        }
    }
}
