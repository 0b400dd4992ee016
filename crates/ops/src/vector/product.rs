//! Products of small matrices of units: `c = onto + a b`, in micro-tiles that stay in registers.
//!
//! A unit is 32 bits: one f32, or two bf16 that lie next to each other along the depth of the product; its kind is the
//! machine's, and a plain `f32` holds its bits. The right factor is read in panels of [`PANEL`] columns.
#![expect(unsafe_code, reason = "reads of the innermost loop, checked once per product")]
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use super::{Leaf, Machine, PANEL};

/// The left factor: element (row, depth) lies at `row / ROWS * self.dozen + row % ROWS * self.row + depth * self.depth`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left<'a> {
    pub(crate) units: &'a [f32],
    pub(crate) dozen: usize,
    pub(crate) row: usize,
    pub(crate) depth: usize,
}

impl<'a> Left<'a> {
    /// The left factor with rows `row` apart and elements `depth` apart.
    pub(crate) fn new(units: &'a [f32], row: usize, depth: usize) -> Left<'a> {
        Left { units, dozen: ROWS * row, row, depth }
    }
}

/// The right factor: panel p at depth d lies at `p * self.panel + d * self.depth`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right<'a> {
    pub(crate) units: &'a [f32],
    pub(crate) panel: usize,
    pub(crate) depth: usize,
}

/// What becomes of the result's earlier values: the beta of BLAS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output<'a> {
    /// They are overwritten.
    Overwrite,
    /// They are added to.
    Accumulate,
    /// They are multiplied by a factor per row, then added to.
    Scaled(&'a [f32]),
}

/// A product of small matrices.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) a: Left<'a>,
    pub(crate) b: Right<'a>,
    pub(crate) c: &'a mut [f32],
    /// The distance between rows of the result.
    pub(crate) step: usize,
    /// The number of rows: a multiple of [`ROWS`].
    pub(crate) rows: usize,
    pub(crate) panels: usize,
    pub(crate) depth: usize,
    pub(crate) onto: Output<'a>,
}

pub(crate) use annulus_machine::blocks::ROWS;

impl Leaf for Product<'_> {
    #[inline(always)]
    fn run<M: Machine>(mut self, machine: M) {
        machine.multiply(&mut self);
    }
}

impl Product<'_> {
    /// Whether every element that any micro-tile reads or writes exists.
    fn fits(&self) -> bool {
        let last = |count: usize, step: usize| count.saturating_sub(1) * step;
        let (rows, panels, depth) = (self.rows, self.panels, self.depth);
        self.rows.is_multiple_of(ROWS)
            && last(rows / ROWS, self.a.dozen) + last(ROWS, self.a.row) + last(depth, self.a.depth)
                < self.a.units.len()
            && last(panels, self.b.panel) + last(depth, self.b.depth) + PANEL <= self.b.units.len()
            && last(rows, self.step) + panels * PANEL <= self.c.len()
            && match self.onto {
                Output::Scaled(factors) => rows <= factors.len(),
                Output::Overwrite | Output::Accumulate => true,
            }
    }
}

/// Computes the product in micro-tiles of `R` rows by `P` panels; `R` divides [`ROWS`].
///
/// A panel of the right factor stays in the nearest cache while all rows of the left pass by it.
#[inline(always)]
pub(crate) fn in_tiles<M: Machine, const R: usize, const P: usize>(
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

/// Computes one micro-tile: every sum adds along the depth in order.
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
    // SAFETY: elements (row .. row + R, 0 .. depth) of `a` and panels (panel .. panel + P, 0 .. depth) of `b` are there.
    unsafe {
        let mut left = a.units.as_ptr().add(row / ROWS * a.dozen + row % ROWS * a.row);
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
        put(machine, &sums, result, step, onto, row);
    }
}

/// Writes the sums of a micro-tile, from row `row` on, to `result`.
///
/// # Safety
/// `result` has R rows of P panels, `step` apart, and `onto` a factor for each row.
#[inline(always)]
unsafe fn put<M: Machine, const R: usize, const P: usize>(
    machine: M,
    sums: &[[M::Panel; P]; R],
    result: *mut f32,
    step: usize,
    onto: Output<'_>,
    row: usize,
) {
    let at = |i: usize, j: usize| -> *mut [f32; PANEL] {
        // SAFETY: `i < R` and `j < P`.
        unsafe { result.add(i * step + j * PANEL).cast() }
    };
    // SAFETY: the caller says so.
    unsafe {
        // A loop for each case: with the choice inside the loop, sums would go through memory.
        match onto {
            Output::Overwrite => leave(sums, |i, j, sum| machine.store(sum, &mut *at(i, j))),
            Output::Accumulate => leave(sums, |i, j, sum| {
                machine.store(machine.add(machine.load(&*at(i, j)), sum), &mut *at(i, j));
            }),
            Output::Scaled(factors) => leave(sums, |i, j, sum| {
                let factor = machine.splat(*factors.get_unchecked(row + i));
                let sum = machine.multiply_add(machine.load(&*at(i, j)), factor, sum);
                machine.store(sum, &mut *at(i, j));
            }),
        }
    }
}

/// Calls `put` with every sum of a micro-tile: its row, its panel, and the sum.
#[inline(always)]
fn leave<T: Copy, const R: usize, const P: usize>(
    sums: &[[T; P]; R],
    mut put: impl FnMut(usize, usize, T),
) {
    for (i, sums) in sums.iter().enumerate() {
        for (j, &sum) in sums.iter().enumerate() {
            put(i, j, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::attention::fused::pack::{Interleaved, Natural, Panels, units};
    use crate::vector::{Choice, Dispatch, Instructions};

    /// `onto + a b` for `a` rows by depth and `b` columns by depth (left as it is, right transposed) or depth by columns.
    struct Case<'a> {
        a: &'a [f32],
        b: &'a [f32],
        sizes: [usize; 3],
        onto: Output<'a>,
        transposed: bool,
    }

    impl Choice for Case<'_> {
        type Output = Vec<f32>;

        /// Packs both factors as attention does; rows of each are `depth` or `columns` apart.
        fn with<M: Machine>(self, machine: M) -> Vec<f32> {
            let [rows, columns, depth] = self.sizes;
            let (mut a, mut c) = (self.a.to_vec(), vec![1.0; rows * columns]);
            machine.call(Natural { rows: &mut a, step: depth, width: depth });
            let mut b = vec![0.0; self.b.len()];
            let panel = if self.transposed {
                machine.call(Panels { from: self.b, to: &mut b, step: depth, width: depth });
                Right { units: &b, panel: units::<M>(depth) * PANEL, depth: PANEL }
            } else {
                machine.call(Interleaved { from: self.b, to: &mut b, step: columns });
                Right { units: &b, panel: PANEL, depth: columns }
            };
            machine.call(Product {
                a: Left::new(&a, depth, 1),
                b: panel,
                c: &mut c,
                step: columns,
                rows,
                panels: columns / PANEL,
                depth: units::<M>(depth),
                onto: self.onto,
            });
            c
        }
    }

    #[test]
    fn micro_tiles_agree_with_sums_in_f64_on_every_machine() {
        let value = |seed: usize, index: usize| {
            bf16::from_f32(((index * 7919 + seed * 104_729) % 1009) as f32 / 500.0 - 1.0).to_f32()
        };
        for (rows, columns, depth) in [(12, 16, 16), (24, 48, 32), (36, 80, 64), (12, 32, 192)] {
            let a: Vec<f32> = (0..rows * depth).map(|index| value(1, index)).collect();
            let b: Vec<f32> = (0..columns * depth).map(|index| value(2, index)).collect();
            let factors: Vec<f32> = (0..rows).map(|index| value(3, index)).collect();
            for (onto, transposed) in [
                (Output::Overwrite, true),
                (Output::Accumulate, false),
                (Output::Scaled(&factors), true),
                (Output::Scaled(&factors), false),
            ] {
                for instructions in Instructions::tested() {
                    let narrow = instructions == Instructions::Avx512Bf16;
                    let sizes = [rows, columns, depth];
                    let case = Case { a: &a, b: &b, sizes, onto, transposed };
                    let found = instructions.with(narrow, case);
                    for (index, found) in found.iter().enumerate() {
                        let (row, column) = (index / columns, index % columns);
                        let start = match onto {
                            Output::Overwrite => 0.0,
                            Output::Accumulate => 1.0,
                            Output::Scaled(factors) => f64::from(factors[row]),
                        };
                        let right =
                            |d| if transposed { column * depth + d } else { d * columns + column };
                        let product = |d| f64::from(a[row * depth + d]) * f64::from(b[right(d)]);
                        let wanted = start + (0..depth).map(product).sum::<f64>();
                        let error = (f64::from(*found) - wanted).abs();
                        let allowed = f64::from(f32::EPSILON) * depth as f64;
                        assert!(error < allowed, "{instructions:?} {sizes:?} {onto:?}: {error:e}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "inside of its slices")]
    fn a_product_that_reaches_out_of_a_slice_is_refused() {
        let (a, b) = (vec![0.0; 12 * 16], vec![0.0; 15 * 16]);
        let onto = Output::Overwrite;
        let case = Case { a: &a, b: &b, sizes: [12, 16, 16], onto, transposed: false };
        Instructions::Portable.with(false, case);
    }
}
