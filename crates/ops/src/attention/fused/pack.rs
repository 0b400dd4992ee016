//! Packs rows of f32 as units, in the orders in which products read them.
//!
//! ```text
//! natural      n(x)[row][d]         = (x[row][2d], x[row][2d + 1])      left factor, depth along a row
//! interleaved  i(x)[d][column]      = (x[2d][column], x[2d + 1][column])  either factor, depth along a column
//! panels       p(x)[panel][d][lane] = n(x)[panel * 16 + lane][d]        right factor, transposed
//! ```
//! Written for units of two values; of one, natural and interleaved are the rows themselves.
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use std::array::from_fn;

use crate::vector::{Leaf, Machine, PANEL};

/// The number of units that hold `values` values.
pub(crate) fn units<M: Machine>(values: usize) -> usize {
    values.div_ceil(M::UNIT)
}

/// Converts rows of `width` values, a multiple of [`PANEL`], to natural units in place, at the front of each row.
#[derive(Debug)]
pub(crate) struct Natural<'a> {
    pub(crate) rows: &'a mut [f32],
    /// The distance between rows.
    pub(crate) step: usize,
    pub(crate) width: usize,
}

impl Leaf for Natural<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        if M::UNIT == 1 {
            return;
        }
        for row in self.rows.chunks_mut(self.step) {
            let panels = row[..self.width].as_chunks_mut().0;
            for pair in 0..panels.len().div_ceil(2) {
                let low = machine.load(&panels[2 * pair]);
                let high =
                    panels.get(2 * pair + 1).map_or(machine.splat(0.0), |high| machine.load(high));
                machine.store(machine.neighbours(low, high), &mut panels[pair]);
            }
        }
    }
}

/// Interleaves rows into another buffer, of as many rows as units hold them.
#[derive(Debug)]
pub(crate) struct Interleaved<'a> {
    pub(crate) from: &'a [f32],
    pub(crate) to: &'a mut [f32],
    /// The distance between rows of both, a multiple of [`PANEL`].
    pub(crate) step: usize,
}

impl Leaf for Interleaved<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        if M::UNIT == 1 {
            return self.to.copy_from_slice(self.from);
        }
        for (from, to) in self.from.chunks(2 * self.step).zip(self.to.chunks_mut(self.step)) {
            let (first, second) = from.split_at(self.step);
            let panels = first.as_chunks().0.iter().zip(second.as_chunks().0);
            for (to, (first, second)) in to.as_chunks_mut().0.iter_mut().zip(panels) {
                machine.store(machine.units(machine.load(first), machine.load(second)), to);
            }
        }
    }
}

/// Packs rows, a multiple of [`PANEL`] of them, into panels.
#[derive(Debug)]
pub(crate) struct Panels<'a> {
    pub(crate) from: &'a [f32],
    /// The panels, `units(width)` times [`PANEL`] each.
    pub(crate) to: &'a mut [f32],
    /// The distance between rows.
    pub(crate) step: usize,
    /// The number of values per row; the rest of a whole unit is 0.
    pub(crate) width: usize,
}

impl Leaf for Panels<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let depth = self.width.div_ceil(M::UNIT);
        let rows = self.from.chunks_exact(self.step * PANEL);
        for (rows, panel) in rows.zip(self.to.chunks_exact_mut(depth * PANEL)) {
            for (unit, to) in panel.as_chunks_mut().0.iter_mut().enumerate() {
                let column = |index: usize| -> [f32; PANEL] {
                    from_fn(|lane| rows[lane * self.step + unit * M::UNIT + index])
                };
                let first = machine.load(&column(0));
                let last = machine.load(&column(M::UNIT - 1));
                machine.store(machine.units(first, last), to);
            }
        }
    }
}
