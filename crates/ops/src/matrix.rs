//! Matrix products `output = onto + sum of a b`, in micro-tiles that stay in registers.
//!
//! The right factor is packed into panels by all workers, as much of it as [`Cut`] says, then every job multiplies some rows with it. What
//! an element sums, and in which order, depends only on the depth of the product, so that bits depend neither on the number of workers nor
//! on the machine's caches; what is packed, and so how much memory it takes, a plan knows from the same [`Cut`].

mod dots;
mod job;
mod pack;

use annulus_machine::blocks::{Cut, FEW_ROWS, PANEL};

use crate::Pool;
use crate::pool::Shelf;
use crate::rows::{CHUNK, rows_per_chunk, unwritten};
use crate::vector::Dispatch;
use dots::Dots;
use job::{Job, Scratch};
use pack::Pack;

/// The number of panels that a job packs at a time: rows of the right factor are far apart.
const PACKED_PANELS: usize = 4;
/// The most rows that are computed element by element.
const DOTS: usize = 3;
/// The number of their elements that a job computes.
const DOTTED_COLUMNS: usize = 64;

/// A matrix of borrowed elements, row-major or column-major.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// The matrix of `data` in row-major order.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        assert_eq!(data.len(), rows * columns, "a matrix has rows times columns elements");
        Matrix { data, rows, columns, row_stride: columns, column_stride: 1 }
    }
    /// A matrix with gaps between its rows, or between its columns, which are contiguous.
    pub(crate) fn strided(
        data: &'a [f32],
        [rows, columns]: [usize; 2],
        [row_stride, column_stride]: [usize; 2],
    ) -> Matrix<'a> {
        assert!(row_stride == 1 || column_stride == 1, "rows or columns in one piece");
        Matrix { data, rows, columns, row_stride, column_stride }
    }
    /// The numbers of rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }
    /// This matrix transposed, with the same elements in memory.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
    /// Some of the rows.
    fn rows(self, first: usize, rows: usize) -> Matrix<'a> {
        Matrix { data: &self.data[(first * self.row_stride).min(self.data.len())..], rows, ..self }
    }
    /// Some of the columns.
    fn columns(self, first: usize, columns: usize) -> Matrix<'a> {
        self.transposed().rows(first, columns).transposed()
    }
}

/// What becomes of a product's output: the beta of BLAS, and what else is added.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// It is overwritten.
    Overwrite,
    /// It is added to.
    Accumulate,
    /// It is overwritten by the product plus this row, in every row.
    AddRow(&'a [f32]),
    /// It is overwritten by the product plus a matrix of the output's shape, row-major.
    AddMatrix(&'a [f32]),
}

/// A product `output = onto + sum of a b`, one of several that run together; `output` is row-major.
pub(crate) struct Product<'a> {
    pub(crate) terms: Vec<(Matrix<'a>, Matrix<'a>)>,
    pub(crate) onto: Output<'a>,
    pub(crate) output: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// The product `output = a b`.
    pub(crate) fn new(a: Matrix<'a>, b: Matrix<'a>, output: &'a mut [f32]) -> Product<'a> {
        Product { terms: vec![(a, b)], onto: Output::Overwrite, output }
    }
    /// The numbers of rows and columns of the output.
    fn shape(&self) -> (usize, usize) {
        let (rows, columns) = self.terms.first().map_or((0, 0), |(a, b)| (a.rows, b.columns));
        for (a, b) in &self.terms {
            assert_eq!(a.columns, b.rows, "a product's inner dimensions are equal");
            assert_eq!((rows, columns), (a.rows, b.columns), "the terms of a sum have one shape");
        }
        let elements = match self.onto {
            Output::AddMatrix(matrix) => matrix.len(),
            Output::AddRow(row) => rows * row.len(),
            Output::Overwrite | Output::Accumulate => self.output.len(),
        };
        assert_eq!(self.output.len(), rows * columns, "a product has a row per row");
        assert_eq!(elements, rows * columns, "what a product is added to has its shape");
        (rows, columns)
    }
}

/// Computes all of `products`. Every element of their outputs is written.
pub(crate) fn multiply(pool: &Pool, products: Vec<Product<'_>>) {
    for product in products {
        let (rows, columns) = product.shape();
        let Product { terms, onto, output } = product;
        if rows * columns == 0 {
            continue;
        }
        begin(pool, columns, onto, output);
        let add = !matches!(onto, Output::Overwrite);
        let by_columns = terms.iter().all(|(a, b)| a.column_stride == 1 && b.row_stride == 1);
        // Sums of dots are in another order than those of tiles: bits would depend on the number of rows.
        if rows <= DOTS && by_columns && pool.block().is_none() {
            dots(pool, columns, &terms, output, add);
        } else if rows < FEW_ROWS && by_columns {
            sum_turned(pool, rows, columns, terms, output, add);
        } else {
            sum(pool, columns, terms, output, add);
        }
    }
}

/// Writes what a product is added to into its output, where it is elsewhere.
fn begin(pool: &Pool, columns: usize, onto: Output<'_>, output: &mut [f32]) {
    match onto {
        Output::Overwrite | Output::Accumulate => {}
        Output::AddMatrix(matrix) => {
            pool.for_chunks(output, CHUNK, |index, piece| {
                piece.copy_from_slice(&matrix[index * CHUNK..][..piece.len()]);
            });
        }
        Output::AddRow(row) => {
            pool.for_chunks(output, rows_per_chunk(columns) * columns, |_, piece| {
                piece.chunks_exact_mut(columns).for_each(|to| to.copy_from_slice(row));
            });
        }
    }
}

/// The sum of `terms`, or its sum with what is in `output`, rows of `columns`.
fn sum(
    pool: &Pool,
    columns: usize,
    terms: Vec<(Matrix<'_>, Matrix<'_>)>,
    output: &mut [f32],
    mut add: bool,
) {
    for (a, b) in terms {
        if a.columns == 0 {
            if !add {
                output.fill(0.0);
            }
            add = true;
            continue;
        }
        let cut = Cut::new([a.rows, columns, a.columns], &pool.core().caches);
        // SAFETY: of every part of it, jobs read what was packed.
        let mut packed = unsafe { unwritten(cut.right()) };
        let workers = cut.workers(pool.workers());
        let scratch = Shelf::of((0..workers).map(|_| Scratch::new(&cut)));
        for first in (0..columns).step_by(cut.columns) {
            let panels = b.columns(first, cut.columns.min(columns - first));
            for start in (0..a.columns).step_by(cut.packed_depth) {
                let len = cut.packed_depth.min(a.columns - start);
                let part = Part { first, columns: panels.columns, step: columns, cut };
                part.multiply(
                    pool,
                    (a.columns(start, len), panels.rows(start, len)),
                    (&mut packed, &scratch),
                    (output, add || start > 0),
                );
            }
        }
        add = true;
    }
}

/// The sum of `terms`, computed as the transpose: for few rows, whose right factors lie by columns.
fn sum_turned(
    pool: &Pool,
    rows: usize,
    columns: usize,
    terms: Vec<(Matrix<'_>, Matrix<'_>)>,
    output: &mut [f32],
    add: bool,
) {
    // SAFETY: a sum writes every element, or all are written here.
    let mut turned = unsafe { unwritten(rows * columns) };
    if add {
        pool.for_chunks(&mut turned, rows, |column, to| {
            to.iter_mut().enumerate().for_each(|(row, to)| *to = output[row * columns + column]);
        });
    }
    let terms = terms.into_iter().map(|(a, b)| (b.transposed(), a.transposed()));
    sum(pool, rows, terms.collect(), &mut turned, add);
    pool.for_chunks(output, columns, |row, to| {
        to.iter_mut().enumerate().for_each(|(column, to)| *to = turned[column * rows + row]);
    });
}

/// The sum of `terms`, of so few rows that every element is computed by itself: neither factor is packed.
fn dots(
    pool: &Pool,
    columns: usize,
    terms: &[(Matrix<'_>, Matrix<'_>)],
    output: &mut [f32],
    add: bool,
) {
    let instructions = pool.core().instructions;
    for (row, output) in output.chunks_mut(columns).enumerate() {
        pool.for_chunks(output, DOTTED_COLUMNS, |index, output| {
            for (term, (a, b)) in terms.iter().enumerate() {
                let a = &a.data[row * a.row_stride..][..a.columns];
                let b = b.columns(index * DOTTED_COLUMNS, output.len());
                instructions.with(false, Dots { a, b, output, add: add || term > 0 });
            }
        });
    }
}

/// Columns of a product for which the right factor is packed at a time.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    columns: usize,
    /// The distance between rows of the output.
    step: usize,
    cut: Cut,
}

impl Part {
    /// Multiplies `a b` for these columns, with some of the depth.
    fn multiply(
        self,
        pool: &Pool,
        (a, b): (Matrix<'_>, Matrix<'_>),
        (packed, scratch): (&mut [f32], &Shelf<Scratch>),
        (output, add): (&mut [f32], bool),
    ) {
        let (depth, instructions) = (a.columns, pool.core().instructions);
        let packed = &mut packed[..self.columns.next_multiple_of(PANEL) * depth];
        pool.for_chunks(packed, PACKED_PANELS * PANEL * depth, |index, to| {
            let first = index * PACKED_PANELS * PANEL;
            let columns = (to.len() / depth).min(self.columns - first);
            instructions.with(false, Pack { from: b.columns(first, columns), to });
        });
        let packed = &*packed;
        pool.for_chunks(output, self.cut.rows * self.step, |index, output| {
            let a = a.rows(index * self.cut.rows, output.len() / self.step);
            scratch.with(|scratch| {
                instructions.with(false, Job { part: self, a, packed, output, add, scratch });
            });
        });
    }
}

#[cfg(test)]
mod tests;
