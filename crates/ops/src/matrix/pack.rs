//! Factors of a product in the order that micro-tiles read them.
//!
//! ```text
//! right  [panel][depth][16 columns]
//! left   [dozen][depth][12 rows] where the matrix lies by columns, [dozen][12 rows][depth] where it lies by rows
//! ```
//! What exceeds the matrix is 0.
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use super::Matrix;
use crate::vector::product::{Left, ROWS};
use crate::vector::{Choice, Leaf, Machine, PANEL, prefetch};

/// The number of rows by which prefetches run ahead of packing: rows are on pages of their own, where the processor expects none.
const AHEAD: usize = 16;

/// Packs columns of a right factor.
pub(super) struct Pack<'a> {
    pub(super) from: Matrix<'a>,
    pub(super) to: &'a mut [f32],
}

impl Choice for Pack<'_> {
    type Output = ();
    fn with<M: Machine>(self, machine: M) {
        machine.call(self);
    }
}

impl Leaf for Pack<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let Pack { from, to } = self;
        let (depth, whole) = (from.rows, from.columns / PANEL);
        if from.column_stride == 1 {
            // Row by row, which are contiguous.
            for row in 0..depth {
                prefetch(from.data, (row + AHEAD) * from.row_stride, from.columns);
                let panels = from.data[row * from.row_stride..].as_chunks().0;
                for (panel, values) in panels[..whole].iter().enumerate() {
                    let to = &mut to[(panel * depth + row) * PANEL..];
                    if let Some(to) = to.first_chunk_mut() {
                        machine.store(machine.load(values), to);
                    }
                }
            }
        } else {
            for (panel, to) in to.chunks_exact_mut(depth * PANEL).take(whole).enumerate() {
                turn(machine, &from.data[panel * PANEL * from.column_stride..], &from, to);
            }
        }
        let rest = from.columns % PANEL;
        if rest > 0 {
            let to = to[whole * depth * PANEL..].as_chunks_mut::<PANEL>().0;
            for (row, to) in to.iter_mut().enumerate() {
                let at = |column: usize| row * from.row_stride + column * from.column_stride;
                for (lane, to) in to.iter_mut().enumerate() {
                    *to = if lane < rest { from.data[at(whole * PANEL + lane)] } else { 0.0 };
                }
            }
        }
    }
}

/// Transposes sixteen contiguous columns from `from` on into a panel.
#[inline(always)]
fn turn<M: Machine>(machine: M, from: &[f32], of: &Matrix<'_>, to: &mut [f32]) {
    let columns: [&[f32]; PANEL] =
        std::array::from_fn(|lane| &from[lane * of.column_stride..][..of.rows]);
    let (panels, rest) = to.split_at_mut(of.rows / PANEL * PANEL * PANEL);
    for (block, to) in panels.chunks_exact_mut(PANEL * PANEL).enumerate() {
        let mut square = [[0.0; PANEL]; PANEL];
        for (square, column) in square.iter_mut().zip(columns) {
            if let Some(values) = column[block * PANEL..].first_chunk() {
                machine.store(machine.load(values), square);
            }
        }
        for (row, to) in to.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
            *to = std::array::from_fn(|lane| square[lane][row]);
        }
    }
    let first = of.rows / PANEL * PANEL;
    for (row, to) in rest.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
        *to = std::array::from_fn(|lane| columns[lane][first + row]);
    }
}

/// Packs a left factor, padded to whole dozens of rows, and describes how to read it.
pub(super) fn left<'a>(from: Matrix<'_>, to: &'a mut Vec<f32>) -> Left<'a> {
    let (rows, depth) = from.shape();
    to.resize(rows.next_multiple_of(ROWS) * depth, 0.0);
    if from.column_stride == 1 {
        by_rows(from, to);
    } else {
        by_columns(from, to);
    }
    let dozen = ROWS * depth;
    let (row, depth) = if from.column_stride == 1 { (depth, 1) } else { (1, ROWS) };
    Left { units: to, dozen, row, depth }
}

fn by_rows(from: Matrix<'_>, to: &mut [f32]) {
    let depth = from.columns;
    for (row, to) in to.chunks_exact_mut(depth).enumerate() {
        if row < from.rows {
            to.copy_from_slice(&from.data[row * from.row_stride..][..depth]);
        } else {
            to.fill(0.0);
        }
    }
}

fn by_columns(from: Matrix<'_>, to: &mut [f32]) {
    let (rows, depth) = from.shape();
    let to = to.as_chunks_mut::<ROWS>().0;
    // Column by column, which are contiguous.
    for column in 0..depth {
        prefetch(from.data, (column + AHEAD) * from.column_stride, rows);
        let (dozens, rest) = from.data[column * from.column_stride..][..rows].as_chunks::<ROWS>();
        for (dozen, values) in dozens.iter().enumerate() {
            to[dozen * depth + column] = *values;
        }
        if !rest.is_empty() {
            let to = &mut to[dozens.len() * depth + column];
            *to = [0.0; ROWS];
            to[..rest.len()].copy_from_slice(rest);
        }
    }
}
