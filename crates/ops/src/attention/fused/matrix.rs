//! Matrices as views of slices, and their product.

use gemm::{Parallelism, gemm};

/// A read-only matrix in a slice: element (i, j) is `values[i * row_step + j * column_step]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

/// What a product does with what was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    /// Forgets it.
    Overwrite,
    /// Adds to it.
    Add,
}

impl<'a> Matrix<'a> {
    /// The row-major matrix of `rows` by `columns` whose rows start `row_step` apart.
    ///
    /// # Panics
    /// When it is empty or reaches past the slice.
    pub(super) fn new(values: &'a [f32], rows: usize, columns: usize, row_step: usize) -> Self {
        assert!(holds(values.len(), rows, columns, row_step), "a matrix reaches past its slice");
        Matrix { values, rows, columns, row_step, column_step: 1 }
    }

    /// How many rows there are.
    pub(super) fn rows(self) -> usize {
        self.rows
    }

    /// The same elements, rows as columns.
    pub(super) fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
            ..self
        }
    }
}

/// `to = factor * left right`, or `to += ...`; the rows of `to` start `row_step` apart.
///
/// # Panics
/// When the sizes do not fit.
pub(super) fn multiply(
    to: &mut [f32],
    row_step: usize,
    into: Into,
    factor: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    assert_eq!(left.columns, right.rows, "the inner sizes of a product differ");
    assert!(holds(to.len(), left.rows, right.columns, row_step), "a product outgrows its slice");
    // SAFETY: the views stay inside their slices (`holds`), `to` is borrowed mutably and thus overlaps neither.
    unsafe {
        gemm(
            left.rows,
            right.columns,
            left.columns,
            to.as_mut_ptr(),
            1,
            row_step as isize,
            into == Into::Add,
            left.values.as_ptr(),
            left.column_step as isize,
            left.row_step as isize,
            right.values.as_ptr(),
            right.column_step as isize,
            right.row_step as isize,
            1.0,
            factor,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

fn holds(len: usize, rows: usize, columns: usize, row_step: usize) -> bool {
    rows > 0 && columns > 0 && columns <= row_step && (rows - 1) * row_step + columns <= len
}
