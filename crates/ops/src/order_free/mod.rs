//! Order-free sums, whose bits depend only on what is added: not on the order, nor on what was added together before.
//!
//! A number is cut into parts, each a small multiple of a power of two, 2^(13 i) for neighbouring i, and parts of the same i are added as
//! integers, in a bin for each i (after Demmel and Nguyen, "Parallel reproducible summation", IEEE Trans. Computers 64, 2015). Numbers that
//! are added together, a row, are cut from the highest bin that any of them reaches, so that their parts do not depend on what came before.
//! A sum keeps the three highest bins that anything has reached: lower parts are dropped, of earlier numbers as of later ones.
//!
//! ```text
//! a row of `width` sums, as it lies in memory and travels:   [high bins; width] [middle; width] [low; width] [which is highest]
//! ```
#![expect(
    clippy::inline_always,
    reason = "inlined, a loop is compiled for the caller's instructions"
)]

mod exact;
mod parameters;
mod table;

pub(crate) use exact::{SQUARES, to_grid};
pub use exact::{Squares, sum_of_squares};
pub(crate) use parameters::{Sums, add_weight_gradient, weight_gradient, whole_blocks};
pub use table::{add_sums, is_order_free, of_shape, places, sum_of, values, values_at};
pub(crate) use table::{as_tensor, groups, table_mut, table_of};

use annulus_machine::blocks::STRICT_TERMS;

use crate::vector::{Leaf, Machine, PANEL};

/// The number of bits of a bin.
pub(crate) const WIDTH: i32 = 13;
/// The number of bins of a sum: at least 26 bits below the largest number that was added.
const BINS: usize = 3;
// A number is at most 2^13 times its highest bin, of which this many fit into 32 bits.
const _: () = assert!(STRICT_TERMS << WIDTH <= 1 << 31);

/// The lowest bin that numbers are cut from: smaller ones have parts in it.
const LOWEST: i32 = -9;
/// The highest bin: above it, and for infinities and NaN, a sum is NaN.
const HIGHEST: i32 = 8;
/// Added to the index of a row's highest bin, so that 0 is a row to which nothing was added.
const BIAS: i32 = 1 << 20;
/// The highest bin of a row whose sums are NaN.
const SPOILT: u32 = u32::MAX;

pub(crate) use annulus_sequence::order_free_row as length;

/// The constant 1.5 · 2^(23 + 13 bin): added to a number below 2^(22 + 13 bin), it rounds that to a multiple of 2^(13 bin).
#[inline(always)]
fn rounding(bin: i32) -> f32 {
    f32::from_bits((((127 + 23 + WIDTH * bin) as u32) << 23) | (1 << 22))
}

/// The bin of a number above 0: i of the largest 2^(13 i) that is at most as large.
#[inline(always)]
fn bin_of(number: f32) -> i32 {
    i32::from(BIN_OF[(number.to_bits() >> 23) as usize & 255])
}

/// Bins by the exponent in a number's bits.
const BIN_OF: [i8; 256] = {
    let mut bins = [0; 256];
    let mut exponent = 0;
    while exponent < 256 {
        let bin = (exponent as i32 - 127).div_euclid(WIDTH);
        bins[exponent] = if bin < LOWEST { LOWEST as i8 } else { bin as i8 };
        exponent += 1;
    }
    bins
};

/// Adds `numbers * factor * 2^(13 shift)` to a row, each rounded once where it is multiplied.
#[derive(Debug)]
pub(crate) struct Add<'a> {
    /// The row, of as many sums as numbers.
    pub(crate) row: &'a mut [u32],
    pub(crate) numbers: &'a [f32],
    pub(crate) factor: f32,
    pub(crate) shift: i32,
}

impl Leaf for Add<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let Add { row, numbers, factor, shift } = self;
        // Rounding is monotonic, so the largest product is that of the largest number.
        let most = largest(machine, numbers) * factor.abs();
        if most == 0.0 {
            return;
        }
        let own = bin_of(most);
        if !most.is_finite() || own > HIGHEST {
            return spoil(row);
        }
        let bin = (own + shift + BIAS) as u32;
        let Some(skipped) = raise(row, numbers.len(), bin) else { return };
        let (first, others) = row.split_at_mut(numbers.len());
        let (second, third) = others.split_at_mut(numbers.len());
        let parts = Parts { machine, numbers, factor, own };
        match skipped {
            0 => parts.add_to(&mut [first, second, third]),
            1 => parts.add_to(&mut [second, third]),
            _ => parts.add_to(&mut [third]),
        }
    }
}

/// The largest absolute value; NaN where any number is.
#[inline(always)]
fn largest<M: Machine>(machine: M, numbers: &[f32]) -> f32 {
    let (panels, rest) = numbers.as_chunks::<PANEL>();
    let mut most = machine.splat(0.0);
    for panel in panels {
        most = machine.magnitudes(machine.load(panel), most);
    }
    // Bits of non-negative floats are ordered as the numbers, and those of NaN are the largest.
    let mut most = machine.most_bits(most);
    for number in rest {
        most = number.abs().to_bits().max(most);
    }
    f32::from_bits(most)
}

/// Raises a row's highest bin to at least `bin`; returns how many bins above `bin` it is. `None`: nothing can be added, as the row is NaN
/// or the number too small for its bins.
#[inline(always)]
fn raise(row: &mut [u32], width: usize, bin: u32) -> Option<usize> {
    let (bins, top) = row.split_at_mut(BINS * width);
    if top[0] < bin {
        if top[0] > 0 {
            lower(bins, width, (bin - top[0]) as usize);
        }
        top[0] = bin;
    }
    Some((top[0] - bin) as usize).filter(|above| *above < BINS)
}

/// Shifts bins down by `by` places for a higher first bin; the lowest are dropped.
#[cold]
fn lower(bins: &mut [u32], width: usize, by: usize) {
    let by = by.min(BINS) * width;
    let kept = bins.len() - by;
    bins.copy_within(..kept, by);
    bins[..by].fill(0);
}

/// The numbers of a row, to be cut into parts.
struct Parts<'a, M> {
    machine: M,
    numbers: &'a [f32],
    factor: f32,
    own: i32,
}

impl<M: Machine> Parts<'_, M> {
    /// Adds the parts of all numbers to bins, the highest first. Written as loops, since what takes closures is not always inlined.
    #[inline(always)]
    fn add_to<const N: usize>(&self, bins: &mut [&mut [u32]; N]) {
        let mut round = [0.0; N];
        for (bin, round) in round.iter_mut().enumerate() {
            *round = rounding(self.own - bin as i32);
        }
        let (panels, rest) = self.numbers.as_chunks::<PANEL>();
        for (index, numbers) in panels.iter().enumerate() {
            let mut left = self.scaled(numbers);
            for bin in 0..N {
                let Some(to) = bins[bin][index * PANEL..].first_chunk_mut() else { return };
                left = self.part(left, round[bin], to);
            }
        }
        if rest.is_empty() {
            return;
        }
        let mut last = [0.0; PANEL];
        last[..rest.len()].copy_from_slice(rest);
        let mut left = self.scaled(&last);
        for bin in 0..N {
            let mut part = [0; PANEL];
            left = self.part(left, round[bin], &mut part);
            for (index, part) in part[..rest.len()].iter().enumerate() {
                let to = &mut bins[bin][panels.len() * PANEL + index];
                *to = to.wrapping_add(*part);
            }
        }
    }

    #[inline(always)]
    fn scaled(&self, numbers: &[f32; PANEL]) -> M::Panel {
        self.machine.multiplied(self.machine.load(numbers), self.machine.splat(self.factor))
    }

    /// Adds the whole units of a bin in `left` to it; returns what is left.
    #[inline(always)]
    fn part(&self, left: M::Panel, round: f32, bin: &mut [u32; PANEL]) -> M::Panel {
        let round = self.machine.splat(round);
        let rounded = self.machine.add(left, round);
        self.machine.add_bits(rounded, round, bin);
        self.machine.subtract(left, self.machine.subtract(rounded, round))
    }
}

/// Adds `number * 2^(13 shift)` to a row of one sum.
#[inline(always)]
pub(crate) fn add_one(row: &mut [u32], number: f32, shift: i32) {
    if number == 0.0 {
        return;
    }
    let own = bin_of(number.abs());
    if !number.is_finite() || own > HIGHEST {
        return spoil(row);
    }
    let Some(skipped) = raise(row, 1, (own + shift + BIAS) as u32) else { return };
    let mut left = number;
    for (bin, to) in row[skipped..BINS].iter_mut().enumerate() {
        let round = rounding(own - bin as i32);
        let rounded = left + round;
        *to = to.wrapping_add(rounded.to_bits().wrapping_sub(round.to_bits()));
        left -= rounded - round;
    }
}

/// Makes a row's sums NaN, permanently.
pub(crate) fn spoil(row: &mut [u32]) {
    row[row.len() - 1] = SPOILT;
}

/// Adds the sums of one row to those of another of the same width.
pub(crate) fn join(row: &mut [u32], from: &[u32]) {
    let width = from.len() / BINS;
    let (bins, top) = from.split_at(BINS * width);
    if top[0] == SPOILT {
        row[BINS * width] = SPOILT;
    }
    if top[0] == 0 || top[0] == SPOILT {
        return;
    }
    if let Some(skipped) = raise(row, width, top[0]) {
        let to = &mut row[skipped * width..BINS * width];
        to.iter_mut().zip(bins).for_each(|(to, from)| *to = to.wrapping_add(*from));
    }
}

/// The exponent of the unit of a row's sums, 2^unit. `None`: they are NaN.
#[inline(always)]
fn unit(row: &[u32]) -> Option<i32> {
    let top = row[row.len() - 1];
    (top != SPOILT).then(|| WIDTH * (top as i32 - BIAS - (BINS as i32 - 1)))
}

/// A sum in the units of its row, as f64: exactly what was added, as far as bins reach, up to 2^53.
#[inline(always)]
fn whole(first: u32, second: u32, third: u32) -> f64 {
    let (first, second, third) = (first as i32, second as i32, third as i32);
    ((i64::from(first) << (2 * WIDTH)) + (i64::from(second) << WIDTH) + i64::from(third)) as f64
}

/// Writes a row's sums, in its units, times `unit`, each rounded to f64 and then to f32.
#[inline(always)]
fn scaled(row: &[u32], unit: f64, to: &mut [f32]) {
    let (first, others) = row.split_at(to.len());
    let (second, third) = others.split_at(to.len());
    for (index, to) in to.iter_mut().enumerate() {
        *to = (whole(first[index], second[index], third[index]) * unit) as f32;
    }
}

/// Writes a row's sums as f32.
pub(crate) fn read(row: &[u32], to: &mut [f32]) {
    let Some(unit) = unit(row) else { return to.fill(f32::NAN) };
    // A sum times 2^-700 is 0.
    scaled(row, 2.0_f64.powi(unit.clamp(-700, 700)), to);
}

/// Writes a row's sums divided by another sum, in f64; returns the natural log of the divisor. Divided by nothing: 0, and -inf.
pub(crate) fn quotient(row: &[u32], divisor: &[u32], to: &mut [f32]) -> f32 {
    let (Some(unit), Some(of_divisor)) = (unit(row), unit(divisor)) else {
        to.fill(f32::NAN);
        return f32::NAN;
    };
    let sum = whole(divisor[0], divisor[1], divisor[2]);
    if sum == 0.0 {
        to.fill(0.0);
        return f32::NEG_INFINITY;
    }
    scaled(row, 2.0_f64.powi((unit - of_divisor).clamp(-700, 700)) / sum, to);
    (sum.ln() + f64::from(of_divisor) * std::f64::consts::LN_2) as f32
}

#[cfg(test)]
mod tests;
