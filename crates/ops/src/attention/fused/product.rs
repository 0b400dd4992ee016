//! Products of small matrices of units: `c = onto + a b`, in micro-tiles that stay in registers.
//!
//! A unit is 32 bits: one f32, or two bf16 that lie next to each other along the depth of the product; its kind is the
//! machine's, and a plain `f32` holds its bits. The right factor is read in panels of [`PANEL`] columns.
#![expect(unsafe_code, reason = "reads of the innermost loop, checked once per product")]
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use super::machine::{Leaf, Machine, PANEL};

/// The left factor: element (row, depth) lies at `row * self.row + depth * self.depth`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left<'a> {
    pub(super) units: &'a [f32],
    pub(super) row: usize,
    pub(super) depth: usize,
}

/// The right factor: panel p at depth d lies at `p * self.panel + d * self.depth`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right<'a> {
    pub(super) units: &'a [f32],
    pub(super) panel: usize,
    pub(super) depth: usize,
}

/// What the product is added to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Onto<'a> {
    Nothing,
    /// What is there.
    Sum,
    /// What is there times a factor per row.
    Scaled(&'a [f32]),
}

/// A product.
#[derive(Debug)]
pub(super) struct Product<'a> {
    pub(super) a: Left<'a>,
    pub(super) b: Right<'a>,
    pub(super) c: &'a mut [f32],
    /// The distance of rows of the result.
    pub(super) step: usize,
    /// How many there are: a multiple of [`ROWS`].
    pub(super) rows: usize,
    pub(super) panels: usize,
    pub(super) depth: usize,
    pub(super) onto: Onto<'a>,
}

/// Rows come in multiples of this, and so of the rows of every machine's micro-tiles.
pub(super) const ROWS: usize = 12;

impl Leaf for Product<'_> {
    #[inline(always)]
    fn run<M: Machine>(mut self, machine: M) {
        machine.multiply(&mut self);
    }
}

impl Product<'_> {
    /// Whether every element that any micro-tile reads or writes is there.
    fn fits(&self) -> bool {
        let last = |count: usize, step: usize| count.saturating_sub(1) * step;
        let (rows, panels, depth) = (self.rows, self.panels, self.depth);
        self.rows.is_multiple_of(ROWS)
            && last(rows, self.a.row) + last(depth, self.a.depth) < self.a.units.len()
            && last(panels, self.b.panel) + last(depth, self.b.depth) + PANEL <= self.b.units.len()
            && last(rows, self.step) + panels * PANEL <= self.c.len()
            && match self.onto {
                Onto::Scaled(factors) => rows <= factors.len(),
                Onto::Nothing | Onto::Sum => true,
            }
    }
}

/// The product in micro-tiles of `R` rows by `P` panels; `R` divides [`ROWS`].
///
/// A panel of the right factor stays in the nearest cache while all rows of the left pass by it.
#[inline(always)]
pub(super) fn in_tiles<M: Machine, const R: usize, const P: usize>(
    machine: M,
    product: &mut Product<'_>,
) {
    const { assert!(ROWS.is_multiple_of(R), "rows come in multiples of ROWS") };
    if product.rows == 0 || product.panels == 0 || product.depth == 0 {
        return;
    }
    assert!(product.fits(), "a product inside of its slices");
    let mut panel = 0;
    while panel + P <= product.panels {
        for row in (0..product.rows).step_by(R) {
            // SAFETY: `fits`, `row + R <= rows`, `panel + P <= panels`.
            unsafe { tile::<M, R, P>(machine, product, row, panel) }
        }
        panel += P;
    }
    while panel < product.panels {
        for row in (0..product.rows).step_by(R) {
            // SAFETY: likewise.
            unsafe { tile::<M, R, 1>(machine, product, row, panel) }
        }
        panel += 1;
    }
}

/// One micro-tile: every sum adds along the depth in order.
///
/// # Safety
/// `product.fits()`, and the tile's rows and panels are the product's.
#[inline(always)]
unsafe fn tile<M: Machine, const R: usize, const P: usize>(
    machine: M,
    product: &mut Product<'_>,
    row: usize,
    panel: usize,
) {
    let Product { a, b, step, depth, onto, .. } = *product;
    let mut sums = [[machine.splat(0.0); P]; R];
    // SAFETY: the caller says so; `R x P` panels of the result from (row, panel) on.
    let result = unsafe { product.c.as_mut_ptr().add(row * step + panel * PANEL) };
    let at = |i: usize, j: usize| -> *mut [f32; PANEL] {
        // SAFETY: `i < R` and `j < P`.
        unsafe { result.add(i * step + j * PANEL).cast() }
    };
    // SAFETY: elements (row .. row + R, 0 .. depth) of `a` and panels (panel .. panel + P, 0 .. depth) of `b` are there.
    unsafe {
        let mut left = a.units.as_ptr().add(row * a.row);
        let mut right = b.units.as_ptr().add(panel * b.panel);
        for _ in 0..depth {
            let mut columns = [machine.splat(0.0); P];
            for (j, column) in columns.iter_mut().enumerate() {
                *column = machine.load(&*right.add(j * b.panel).cast());
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let value = machine.splat(*left.add(i * a.row));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = machine.dot(value, column, *sum);
                }
            }
            left = left.add(a.depth);
            right = right.add(b.depth);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let sum = match onto {
                    Onto::Nothing => sum,
                    Onto::Sum => machine.add(machine.load(&*at(i, j)), sum),
                    Onto::Scaled(factors) => {
                        let factor = machine.splat(*factors.get_unchecked(row + i));
                        machine.multiply_add(machine.load(&*at(i, j)), factor, sum)
                    }
                };
                machine.store(sum, &mut *at(i, j));
            }
        }
    }
}
