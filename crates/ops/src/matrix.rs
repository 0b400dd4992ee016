//! Products of matrices: the output is cut into tiles of a fixed size, a tile is a job of the pool.
//!
//! A tile runs over the whole of the inner dimension, so neither the number of workers nor their
//! timing reaches a bit.

use std::marker::PhantomData;

use gemm::Parallelism;

use crate::Pool;

/// Columns of a tile of the output.
const COLUMNS: usize = 512;
/// The most rows of a tile: packing its operands then costs a few percent.
const MOST_ROWS: usize = 256;

/// With so many rows on the left, turning the right matrix round costs less than every tile's doing
/// so for its part.
const FEWEST_ROWS: usize = 64;
/// Rows that are turned round at a time: a cache line of each column.
const TURNED_ROWS: usize = 16;

/// Rows of a tile: a sixteenth in steps of 32, so that a few workers have tiles enough. It depends
/// on the shape alone.
fn tile_rows(rows: usize) -> usize {
    (rows / 16).next_multiple_of(32).clamp(32, MOST_ROWS)
}

/// A matrix of borrowed elements, row-major or the transpose of that.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `data` in row-major order.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        assert_eq!(data.len(), rows * columns, "a matrix has rows times columns elements");
        Matrix { data, rows, columns, row_stride: columns, column_stride: 1 }
    }
    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }
    /// The same elements, seen as columns and rows.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
    /// A copy of the elements, row by row.
    fn row_major(&self, pool: &Pool) -> Vec<f32> {
        let mut copy = vec![0.0; self.data.len()];
        pool.for_chunks(&mut copy, TURNED_ROWS * self.columns.max(1), |index, piece| {
            let rows = piece.len() / self.columns;
            for column in 0..self.columns {
                let from = column * self.column_stride + index * TURNED_ROWS * self.row_stride;
                for row in 0..rows {
                    piece[row * self.columns + column] = self.data[from + row * self.row_stride];
                }
            }
        });
        copy
    }
}

/// What a product does with what is in its output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Overwrites it.
    Set,
    /// Adds to it.
    Add,
}

/// `output = a b`, or `output += a b`; `output` row-major.
pub(crate) fn multiply(
    pool: &Pool,
    a: Matrix<'_>,
    b: Matrix<'_>,
    output: &mut [f32],
    mode: Output,
) {
    assert_eq!(a.columns, b.rows, "a product's inner dimensions are equal");
    assert_eq!(
        output.len(),
        a.rows * b.columns,
        "a product has a row per row, a column per column"
    );
    let turned = (b.column_stride != 1 && a.rows >= FEWEST_ROWS).then(|| b.row_major(pool));
    let b = turned.as_deref().map_or(b, |turned| Matrix::new(turned, b.rows, b.columns));
    pool.each(tiles(output, a.rows, b.columns), |tile| tile.multiply(a, b, mode));
}

/// A block of the output that nobody else holds.
struct Tile<'a> {
    start: *mut f32,
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
    stride: usize,
    output: PhantomData<&'a mut [f32]>,
}

// SAFETY: a tile is exclusive access to its elements, like a `&mut`, and f32 is Send.
unsafe impl Send for Tile<'_> {}

/// Cuts a row-major matrix into tiles that together cover it and do not overlap.
fn tiles(output: &mut [f32], rows: usize, columns: usize) -> Vec<Tile<'_>> {
    let tile_rows = tile_rows(rows);
    let starts = (0..rows)
        .step_by(tile_rows)
        .flat_map(|row| (0..columns).step_by(COLUMNS).map(move |column| (row, column)));
    let first = output.as_mut_ptr();
    let tile = |(row, column)| Tile {
        // The offset is inside of `output`: row < rows and column < columns.
        start: first.wrapping_add(row * columns + column),
        row,
        column,
        rows: tile_rows.min(rows - row),
        columns: COLUMNS.min(columns - column),
        stride: columns,
        output: PhantomData,
    };
    starts.map(tile).collect()
}

impl Tile<'_> {
    fn multiply(self, a: Matrix<'_>, b: Matrix<'_>, mode: Output) {
        let alpha = if mode == Output::Add { 1.0 } else { 0.0 };
        // SAFETY: the tile's elements are its own; rows `row .. row + rows` of `a` and columns
        // `column .. column + columns` of `b` exist, as do `a.columns == b.rows` elements along
        // each (`multiply` compared the shapes, `Matrix::new` the lengths), so every address lies
        // inside its slice.
        unsafe {
            gemm::gemm(
                self.rows,
                self.columns,
                a.columns,
                self.start,
                1,
                self.stride as isize,
                mode == Output::Add,
                a.data.as_ptr().wrapping_add(self.row * a.row_stride),
                a.column_stride as isize,
                a.row_stride as isize,
                b.data.as_ptr().wrapping_add(self.column * b.column_stride),
                b.column_stride as isize,
                b.row_stride as isize,
                alpha,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
