//! A job of a matrix product: some of its rows.

use super::pack::left;
use super::{Matrix, Part};
use crate::vector::product::{Left, Output, Product, ROWS, Right};
use crate::vector::{Choice, Machine, PANEL};
use annulus_machine::blocks::{Cut, EDGE_COLUMNS};

/// Buffers for a worker's packed operands, and for results that are not a whole micro-tile of the output.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    left: Vec<f32>,
    edge: Vec<f32>,
}

impl Scratch {
    /// Buffers of the size that `cut` says, whether they will be used or not: a plan counts them.
    pub(super) fn new(cut: &Cut) -> Scratch {
        Scratch { left: Vec::with_capacity(cut.left()), edge: Vec::with_capacity(cut.edge()) }
    }
}

/// The most panels with which reading the left factor in place costs less than packing it.
const FEW_PANELS: usize = 2;

/// `output = a b`, or `output += a b`, for some rows.
pub(super) struct Job<'a> {
    pub(super) part: Part,
    pub(super) a: Matrix<'a>,
    /// The right factor, in panels.
    pub(super) packed: &'a [f32],
    /// Whole rows of the output.
    pub(super) output: &'a mut [f32],
    pub(super) add: bool,
    pub(super) scratch: &'a mut Scratch,
}

impl Choice for Job<'_> {
    type Output = ();

    fn with<M: Machine>(self, machine: M) {
        let Job { part, a, packed, output, add, scratch } = self;
        scratch.edge.resize(part.cut.edge(), 0.0);
        let whole = a.rows / ROWS * ROWS;
        let in_place = a.column_stride == 1 && part.columns.div_ceil(PANEL) <= FEW_PANELS;
        for start in (0..a.columns).step_by(part.cut.depth) {
            let a = a.columns(start, part.cut.depth.min(a.columns - start));
            let right = Right {
                units: &packed[start * PANEL..],
                panel: self.a.columns * PANEL,
                depth: PANEL,
            };
            let mut block = Block {
                part,
                depth: a.columns,
                right,
                output,
                add: add || start > 0,
                edge: &mut scratch.edge,
            };
            if in_place {
                block.rows(machine, Left::new(a.data, a.row_stride, 1), whole);
                let last = left(a.rows(whole, a.rows - whole), &mut scratch.left);
                block.last(machine, last, whole);
            } else {
                let all = left(a, &mut scratch.left);
                block.rows(machine, all, whole);
                let units = &all.units[(whole / ROWS * all.dozen).min(all.units.len())..];
                block.last(machine, Left { units, ..all }, whole);
            }
        }
    }
}

/// A job with a part of the depth.
struct Block<'a> {
    part: Part,
    depth: usize,
    right: Right<'a>,
    output: &'a mut [f32],
    add: bool,
    edge: &'a mut [f32],
}

impl Block<'_> {
    /// Computes whole dozens of rows, from the first on.
    fn rows<M: Machine>(&mut self, machine: M, a: Left<'_>, rows: usize) {
        let Part { first, columns, step, .. } = self.part;
        let panels = columns / PANEL;
        let onto = if self.add { Output::Accumulate } else { Output::Overwrite };
        let (b, depth) = (self.right, self.depth);
        if rows == 0 {
            return;
        }
        machine.call(Product {
            a,
            b,
            c: &mut self.output[first..],
            step,
            rows,
            panels,
            depth,
            onto,
        });
        let rest = columns % PANEL;
        if rest > 0 {
            let b = Right { units: &b.units[panels * b.panel..], ..b };
            let (c, onto) = (&mut *self.edge, Output::Overwrite);
            machine.call(Product { a, b, c, step: PANEL, rows, panels: 1, depth, onto });
            self.put([0, rows], [panels * PANEL, rest], PANEL);
        }
    }

    /// Computes the rows from `whole` on, fewer than a dozen.
    fn last<M: Machine>(&mut self, machine: M, a: Left<'_>, whole: usize) {
        let Part { columns, step, .. } = self.part;
        let rows = self.output.len() / step - whole;
        if rows == 0 {
            return;
        }
        for start in (0..columns).step_by(EDGE_COLUMNS) {
            let columns = EDGE_COLUMNS.min(columns - start);
            let (b, depth) = (self.right, self.depth);
            let b = Right { units: &b.units[start / PANEL * b.panel..], ..b };
            let (panels, c) = (columns.div_ceil(PANEL), &mut *self.edge);
            let (step, onto) = (panels * PANEL, Output::Overwrite);
            machine.call(Product { a, b, c, step, rows: ROWS, panels, depth, onto });
            self.put([whole, rows], [start, columns], step);
        }
    }

    /// Copies `rows` and `columns` from the edge buffer, `width` wide, to their place in the output.
    fn put(&mut self, [row, rows]: [usize; 2], [column, columns]: [usize; 2], width: usize) {
        let Part { first, step, .. } = self.part;
        for (index, from) in self.edge.chunks(width).take(rows).enumerate() {
            let to = &mut self.output[(row + index) * step + first + column..][..columns];
            if self.add {
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            } else {
                to.copy_from_slice(&from[..columns]);
            }
        }
    }
}
