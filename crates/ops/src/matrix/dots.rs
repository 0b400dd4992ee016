//! Computes elements of a product one by one, each a sum over two slices: for products where reading the right factor takes the time.
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use super::Matrix;
use crate::vector::{Choice, Leaf, Machine, PANEL};

/// The number of partial sums of a dot product.
const SUMS: usize = 4;

/// One row of a product, `output = a b` or `output += a b`; the columns of `b` are contiguous.
pub(super) struct Dots<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: Matrix<'a>,
    pub(super) output: &'a mut [f32],
    pub(super) add: bool,
}

impl Choice for Dots<'_> {
    type Output = ();
    fn with<M: Machine>(self, machine: M) {
        machine.call(self);
    }
}

impl Leaf for Dots<'_> {
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let Dots { a, b, output, add } = self;
        for (column, output) in output.iter_mut().enumerate() {
            let dot = dot(machine, a, &b.data[column * b.column_stride..][..a.len()]);
            *output = if add { *output + dot } else { dot };
        }
    }
}

#[inline(always)]
fn dot<M: Machine>(machine: M, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [machine.splat(0.0); SUMS];
    let (a, b) = (a.as_chunks::<PANEL>(), b.as_chunks::<PANEL>());
    let (wide_a, narrow_a) = a.0.as_chunks::<SUMS>();
    let (wide_b, narrow_b) = b.0.as_chunks::<SUMS>();
    for (a, b) in wide_a.iter().zip(wide_b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum = machine.multiply_add(machine.load(a), machine.load(b), *sum);
        }
    }
    for (a, b) in narrow_a.iter().zip(narrow_b) {
        sums[0] = machine.multiply_add(machine.load(a), machine.load(b), sums[0]);
    }
    let sum = machine.add(machine.add(sums[0], sums[1]), machine.add(sums[2], sums[3]));
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| a * b).sum();
    machine.total(sum) + rest
}
