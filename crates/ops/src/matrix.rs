//! Products of matrices: outputs are cut into tiles of a fixed size, a tile is a job of the pool.
//!
//! What a tile adds up, and in which order, depends on the shapes alone, so neither the number of
//! workers nor their timing reaches a bit.

use std::marker::PhantomData;

use gemm::Parallelism;

use crate::Pool;
use crate::rows::{CHUNK, unwritten};

/// Columns of a tile of the output.
const COLUMNS: usize = 512;
/// The most rows of a tile: packing its operands then costs a few percent.
const MOST_ROWS: usize = 256;
/// Jobs that a product over tokens is cut into at least, as far as [`FEWEST_TOKENS`] allows.
const JOBS: usize = 16;
/// Tokens that one job of such a product sums at least.
const FEWEST_TOKENS: usize = 512;

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
    /// Some of the rows.
    fn rows(self, first: usize, rows: usize) -> Matrix<'a> {
        Matrix { data: &self.data[(first * self.row_stride).min(self.data.len())..], rows, ..self }
    }
    /// Some of the columns.
    fn columns(self, first: usize, columns: usize) -> Matrix<'a> {
        self.transposed().rows(first, columns).transposed()
    }
    /// A copy of the elements, row by row.
    fn row_major(&self, pool: &Pool) -> Vec<f32> {
        // SAFETY: the pieces cover the copy, and each of their rows has an element per column.
        let mut copy = unsafe { unwritten(self.data.len()) };
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

/// What a product is added to.
#[derive(Clone, Copy)]
pub(crate) enum Onto<'a> {
    /// Nothing.
    Nothing,
    /// What is in the output.
    Output,
    /// The same row, for every row.
    Row(&'a [f32]),
    /// A matrix of the output's shape, row-major.
    Matrix(&'a [f32]),
}

/// `output = onto + sum of a b`, one of several that run at once; `output` row-major.
pub(crate) struct Product<'a> {
    pub(crate) terms: Vec<(Matrix<'a>, Matrix<'a>)>,
    pub(crate) onto: Onto<'a>,
    pub(crate) output: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// `output = a b`.
    pub(crate) fn new(a: Matrix<'a>, b: Matrix<'a>, output: &'a mut [f32]) -> Product<'a> {
        Product { terms: vec![(a, b)], onto: Onto::Nothing, output }
    }
    /// Rows and columns of the output.
    fn shape(&self) -> (usize, usize) {
        let (rows, columns) = self.terms.first().map_or((0, 0), |(a, b)| (a.rows, b.columns));
        for (a, b) in &self.terms {
            assert_eq!(a.columns, b.rows, "a product's inner dimensions are equal");
            assert_eq!((rows, columns), (a.rows, b.columns), "the terms of a sum have one shape");
        }
        let elements = match self.onto {
            Onto::Matrix(matrix) => matrix.len(),
            Onto::Row(row) => rows * row.len(),
            Onto::Nothing | Onto::Output => self.output.len(),
        };
        assert_eq!(self.output.len(), rows * columns, "a product has a row per row");
        assert_eq!(elements, rows * columns, "what a product is added to has its shape");
        (rows, columns)
    }
}

/// Computes all of `products`. Every element of their outputs is written.
pub(crate) fn multiply(pool: &Pool, mut products: Vec<Product<'_>>) {
    let turned: Vec<_> = products.iter().map(|product| turned(pool, product)).collect();
    let terms: Vec<Vec<_>> = products.iter().zip(&turned).map(row_major).collect();
    let mut tiles = Vec::new();
    for (product, terms) in products.iter_mut().zip(&terms) {
        let (shape, onto) = (product.shape(), product.onto);
        let cut = cut(product.output, shape, (tile_rows(shape.0), COLUMNS));
        tiles.extend(cut.into_iter().map(|tile| (tile, terms, onto)));
    }
    pool.each(tiles, |(mut tile, terms, onto)| {
        tile.begin(onto);
        let mut add = !matches!(onto, Onto::Nothing);
        for (a, b) in terms {
            tile.multiply(*a, *b, add);
            add = true;
        }
    });
}

/// The right matrices of a product, row-major, where that is worth a copy.
fn turned(pool: &Pool, product: &Product<'_>) -> Vec<Option<Vec<f32>>> {
    let turn = |(a, b): &(Matrix<'_>, Matrix<'_>)| {
        (b.column_stride != 1 && a.rows >= FEWEST_ROWS).then(|| b.row_major(pool))
    };
    product.terms.iter().map(turn).collect()
}

/// The terms of a product with the copies in place of what was copied.
fn row_major<'a>(
    (product, turned): (&Product<'a>, &'a Vec<Option<Vec<f32>>>),
) -> Vec<(Matrix<'a>, Matrix<'a>)> {
    let terms = product.terms.iter().zip(turned);
    let term = |(&(a, b), turned): (&(Matrix<'a>, Matrix<'a>), &'a Option<Vec<f32>>)| {
        (a, turned.as_ref().map_or(b, |turned| Matrix::new(turned, b.rows, b.columns)))
    };
    terms.map(term).collect()
}

/// The same for products whose inner dimension, tokens, is many times their output's rows and
/// columns: they are cut along it too, and the parts added in order. One term each, onto nothing or
/// the output.
pub(crate) fn multiply_over_tokens(pool: &Pool, mut products: Vec<Product<'_>>) {
    let mut all: Vec<Parts<'_>> = products.iter().map(Parts::new).collect();
    let tiles: Vec<_> = all.iter_mut().flat_map(Parts::tiles).collect();
    pool.each(tiles, |(mut tile, a, b)| tile.multiply(a, b, false));
    let sums = products.iter_mut().zip(&all).flat_map(|(product, Parts { sums: parts, .. })| {
        let (len, onto) = (product.output.len(), product.onto);
        let pieces = product.output.chunks_mut(CHUNK).enumerate();
        pieces.map(move |(index, piece)| (index * CHUNK, piece, parts.chunks_exact(len), onto))
    });
    pool.each(sums.collect::<Vec<_>>(), |(first, sums, parts, onto)| {
        for (index, part) in parts.enumerate() {
            let part = &part[first..first + sums.len()];
            if index == 0 && matches!(onto, Onto::Nothing) {
                sums.copy_from_slice(part);
            } else {
                sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
        }
    });
}

/// A product in parts, each the sum over some tokens.
struct Parts<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    /// Of one part, but for the last.
    tokens: usize,
    /// One after another.
    sums: Vec<f32>,
}

impl<'a> Parts<'a> {
    fn new(product: &Product<'a>) -> Parts<'a> {
        let (rows, columns) = product.shape();
        let [(a, b)] = product.terms[..] else { unreachable!("a sum over tokens has one term") };
        let tiles = rows.div_ceil(MOST_ROWS) * columns.div_ceil(COLUMNS);
        let wanted = JOBS.div_ceil(tiles.max(1)).min(a.columns / FEWEST_TOKENS).max(1);
        let tokens = a.columns.div_ceil(wanted).max(1);
        let parts = a.columns.div_ceil(tokens).max(1);
        // SAFETY: every part is the output of a product, which writes all of it.
        Parts { a, b, tokens, sums: unsafe { unwritten(parts * rows * columns) } }
    }
    fn tiles(&mut self) -> impl Iterator<Item = (Tile<'_>, Matrix<'a>, Matrix<'a>)> {
        let Parts { a, b, tokens, ref mut sums } = *self;
        let shape = (a.rows, b.columns);
        sums.chunks_exact_mut((shape.0 * shape.1).max(1)).enumerate().flat_map(move |(i, part)| {
            let first = i * tokens;
            let len = tokens.min(a.columns - first);
            let (a, b) = (a.columns(first, len), b.rows(first, len));
            let tiles = cut(part, shape, (MOST_ROWS, COLUMNS));
            tiles.into_iter().map(move |tile| (tile, a, b))
        })
    }
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

/// Cuts a row-major matrix into tiles of at most so many rows and columns, which together cover it
/// and do not overlap.
fn cut(output: &mut [f32], (rows, columns): (usize, usize), most: (usize, usize)) -> Vec<Tile<'_>> {
    let starts = (0..rows)
        .step_by(most.0)
        .flat_map(|row| (0..columns).step_by(most.1).map(move |column| (row, column)));
    let first = output.as_mut_ptr();
    let tile = |(row, column)| Tile {
        // The offset is inside of `output`: row < rows and column < columns.
        start: first.wrapping_add(row * columns + column),
        row,
        column,
        rows: most.0.min(rows - row),
        columns: most.1.min(columns - column),
        stride: columns,
        output: PhantomData,
    };
    starts.map(tile).collect()
}

impl Tile<'_> {
    /// A row of the tile.
    fn row(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.rows, "a row of the tile");
        // SAFETY: the tile's elements are its own, and row `index` is one of its.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index * self.stride), self.columns) }
    }
    /// Writes what the product is to be added to.
    fn begin(&mut self, onto: Onto<'_>) {
        for index in 0..self.rows {
            let from = match onto {
                Onto::Nothing | Onto::Output => return,
                Onto::Row(row) => &row[self.column..],
                Onto::Matrix(matrix) => &matrix[(self.row + index) * self.stride + self.column..],
            };
            let columns = self.columns;
            self.row(index).copy_from_slice(&from[..columns]);
        }
    }
    /// The tile's part of `a b`, added to what is there or not.
    fn multiply(&mut self, a: Matrix<'_>, b: Matrix<'_>, add: bool) {
        let a = a.rows(self.row, self.rows);
        let b = b.columns(self.column, self.columns);
        // SAFETY: the tile's elements are its own; `a` and `b` have as many rows and columns as the
        // tile, and `a.columns == b.rows` (`multiply` compared the shapes, `Matrix::new` the
        // lengths), so every address lies inside its slice.
        unsafe {
            gemm::gemm(
                self.rows,
                self.columns,
                a.columns,
                self.start,
                1,
                self.stride as isize,
                add,
                a.data.as_ptr(),
                a.column_stride as isize,
                a.row_stride as isize,
                b.data.as_ptr(),
                b.column_stride as isize,
                b.row_stride as isize,
                if add { 1.0 } else { 0.0 },
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
