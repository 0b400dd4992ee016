//! Order-free gradients of parameters: sums over tokens of partial results of blocks of neighbouring tokens.

use std::ops::Range;

use annulus_machine::blocks::{DEPTH, STRICT_ROW};
use annulus_memory::{Class, scope};
use candle_core::{Result, Tensor, bail};

use super::length;
use super::table::{AddFlat, as_tensor, groups, table_of};
use crate::Pool;
use crate::pool::Shelf;
use crate::vector::product::{Left, Output, Product, ROWS, Right};
use crate::vector::{Choice, Dispatch, Machine, PANEL};

/// Columns of a weight that are summed over all blocks before the next ones: with a job's rows, they fit into the second-level cache.
const COLUMNS: usize = 256;
/// Rows of a weight that a job sums; twice as many for an odd number of columns, so that jobs begin at whole rows of the table.
const JOB_ROWS: usize = 96;
/// Rows that are copied into groups at a time.
const ROWS_AT_ONCE: usize = 16;

/// The order-free sums of a parameter's elements.
#[derive(Debug)]
pub(crate) struct Sums {
    rows: Vec<u32>,
    elements: usize,
}

impl Sums {
    /// Sums of nothing, for `elements` elements.
    pub(crate) fn of(elements: usize) -> Sums {
        Sums { rows: vec![0; groups(elements) * length(STRICT_ROW)], elements }
    }

    /// Sums of nothing, counted as gradients from the start.
    pub(crate) fn of_gradient(elements: usize) -> Sums {
        let _gradients = scope(Class::Gradients);
        Sums::of(elements)
    }

    /// Adds a number to each sum.
    pub(crate) fn add(&mut self, pool: &Pool, numbers: &[f32]) {
        pool.core().instructions.with(false, Add { sums: &mut self.rows, start: 0, numbers });
    }

    /// The sums as a table.
    pub(crate) fn tensor(self) -> Result<Tensor> {
        as_tensor(self.rows, &table_of(self.elements))
    }

    /// Adds a weight's gradient: see [`add_products`].
    pub(crate) fn add_products(
        &mut self,
        pool: &Pool,
        dy: (&[f32], usize),
        x: (&[f32], usize),
        blocks: &[Range<usize>],
    ) {
        add_products(pool, &mut self.rows, dy, x, blocks);
    }

    /// Adds every token's row of `dy` [tokens, width] to the row of a table [.., width] that its id names, summed by block.
    pub(crate) fn add_rows(
        &mut self,
        pool: &Pool,
        ids: &[u32],
        dy: &[f32],
        width: usize,
        block: usize,
    ) {
        // Sorted as (row, token), so that a row's tokens of a block are neighbours.
        let mut places: Vec<(u32, usize)> = ids.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let places = &places;
        pool.each(pieces(&mut self.rows, STRICT_ROW * width).enumerate(), |(index, rows)| {
            let first = places.partition_point(|(id, _)| (*id as usize) < index * STRICT_ROW);
            let last = places.partition_point(|(id, _)| (*id as usize) < (index + 1) * STRICT_ROW);
            let same =
                |a: &(u32, usize), b: &(u32, usize)| (a.0, a.1 / block) == (b.0, b.1 / block);
            for same in places[first..last].chunk_by(same) {
                let mut sum = vec![0.0_f32; width];
                for (_, token) in same {
                    let row = &dy[token * width..(token + 1) * width];
                    sum.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
                }
                let start = (same[0].0 as usize - index * STRICT_ROW) * width;
                let add = Add { sums: &mut *rows, start, numbers: &sum };
                pool.core().instructions.with(false, add);
            }
        });
    }
}

/// Adds numbers to sums, from an element on.
struct Add<'a> {
    sums: &'a mut [u32],
    start: usize,
    numbers: &'a [f32],
}

impl Choice for Add<'_> {
    type Output = ();
    fn with<M: Machine>(self, machine: M) {
        let Add { sums, start, numbers } = self;
        let width = numbers.len();
        if width > 0 {
            machine.call(AddFlat { sums, start, apart: 0, numbers, width, step: width });
        }
    }
}

/// The gradient `dw = dyᵀ x` as a table of order-free sums: `dy` [tokens, outputs], `x` [tokens, inputs], tokens in blocks of `block`.
///
/// # Errors
/// When the tokens are not whole blocks.
pub(crate) fn weight_gradient(
    pool: &Pool,
    dy: &[f32],
    outputs: usize,
    x: &[f32],
    inputs: usize,
    block: usize,
) -> Result<Tensor> {
    let mut sums = Sums::of_gradient(outputs * inputs);
    add_weight_gradient(pool, &mut sums.rows, (dy, outputs), (x, inputs), block)?;
    sums.tensor()
}

/// Adds a [`weight_gradient`] to a table.
///
/// # Errors
/// When the tokens are not whole blocks.
pub(crate) fn add_weight_gradient(
    pool: &Pool,
    table: &mut [u32],
    dy: (&[f32], usize),
    (x, inputs): (&[f32], usize),
    block: usize,
) -> Result<()> {
    let blocks = whole_blocks(x.len() / inputs.max(1), block)?;
    add_products(pool, table, dy, (x, inputs), &blocks);
    Ok(())
}

/// Adds `dyᵀ x` of every one of these blocks of tokens to the table of a weight [outputs, inputs]: `dy` [tokens, outputs],
/// `x` [tokens, inputs].
fn add_products(
    pool: &Pool,
    table: &mut [u32],
    (dy, outputs): (&[f32], usize),
    (x, inputs): (&[f32], usize),
    blocks: &[Range<usize>],
) {
    if outputs * inputs == 0 {
        return;
    }
    let rows = if inputs.is_multiple_of(2) { JOB_ROWS } else { 2 * JOB_ROWS };
    let scratch = Shelf::<Scratch>::default();
    pool.each(pieces(table, rows * inputs).enumerate(), |(index, sums)| {
        let rows = index * rows..outputs.min((index + 1) * rows);
        scratch.with(|scratch| {
            let job = Products { sums, rows, dy, outputs, x, inputs, blocks, scratch };
            pool.core().instructions.with(false, job);
        });
    });
}

/// A table in pieces of `elements` elements, a multiple of [`STRICT_ROW`].
fn pieces(table: &mut [u32], elements: usize) -> impl ExactSizeIterator<Item = &mut [u32]> {
    table.chunks_mut(elements / STRICT_ROW * length(STRICT_ROW))
}

/// The ranges of `tokens` tokens in whole blocks.
pub(crate) fn whole_blocks(tokens: usize, block: usize) -> Result<Vec<Range<usize>>> {
    if !tokens.is_multiple_of(block) {
        bail!("order-free sums: found {tokens} tokens, expected whole blocks of {block}");
    }
    Ok((0..tokens).step_by(block).map(|start| start..start + block).collect())
}

/// Buffers for a worker's packed operands, and for the products of a block.
#[derive(Debug, Default)]
struct Scratch {
    left: Vec<f32>,
    right: Vec<f32>,
    products: Vec<f32>,
}

/// Some rows of a weight's gradient.
struct Products<'a> {
    sums: &'a mut [u32],
    rows: Range<usize>,
    dy: &'a [f32],
    outputs: usize,
    x: &'a [f32],
    inputs: usize,
    blocks: &'a [Range<usize>],
    scratch: &'a mut Scratch,
}

impl Choice for Products<'_> {
    type Output = ();

    fn with<M: Machine>(mut self, machine: M) {
        for start in (0..self.inputs).step_by(COLUMNS) {
            let columns = start..self.inputs.min(start + COLUMNS);
            for block in self.blocks {
                self.block(machine, columns.clone(), block);
            }
        }
    }
}

impl Products<'_> {
    /// Adds the product of a block of tokens for some columns.
    fn block<M: Machine>(&mut self, machine: M, columns: Range<usize>, block: &Range<usize>) {
        let height = self.rows.len().next_multiple_of(ROWS);
        let width = columns.len().next_multiple_of(PANEL);
        let Scratch { left, right, products } = &mut *self.scratch;
        products.resize(height * width, 0.0);
        for start in block.clone().step_by(DEPTH) {
            let some = start..block.end.min(start + DEPTH);
            in_groups::<ROWS>(left, self.dy, self.outputs, &some, &self.rows);
            in_groups::<PANEL>(right, self.x, self.inputs, &some, &columns);
            machine.call(Product {
                a: Left { units: left, dozen: some.len() * ROWS, row: 1, depth: ROWS },
                b: Right { units: right, panel: some.len() * PANEL, depth: PANEL },
                c: products,
                step: width,
                rows: height,
                panels: width / PANEL,
                depth: some.len(),
                onto: if start == block.start { Output::Overwrite } else { Output::Accumulate },
            });
        }
        machine.call(AddFlat {
            sums: self.sums,
            start: columns.start,
            apart: self.inputs,
            numbers: &products[..self.rows.len() * width],
            width: columns.len(),
            step: width,
        });
    }
}

/// Columns of `TOGETHER` rows at a time, those of each row contiguous; the last group is padded.
fn in_groups<const TOGETHER: usize>(
    to: &mut Vec<f32>,
    from: &[f32],
    step: usize,
    rows: &Range<usize>,
    columns: &Range<usize>,
) {
    to.resize(rows.len() * columns.len().next_multiple_of(TOGETHER), 0.0);
    // A few rows of all groups at a time: reads are contiguous, and so are writes.
    for first in (0..rows.len()).step_by(ROWS_AT_ONCE) {
        let some_rows = first..rows.len().min(first + ROWS_AT_ONCE);
        for (index, to) in to.chunks_exact_mut(rows.len() * TOGETHER).enumerate() {
            let start = columns.start + index * TOGETHER;
            let some = start..columns.end.min(start + TOGETHER);
            for row in some_rows.clone() {
                let values = &from[(rows.start + row) * step..][some.clone()];
                let to = &mut to.as_chunks_mut::<TOGETHER>().0[row];
                if let Some(values) = values.first_chunk() {
                    // Of known length, so that no function is called.
                    *to = *values;
                } else {
                    to.fill(0.0);
                    to[..values.len()].copy_from_slice(values);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order_free::{add_sums, values_at};
    use crate::testing::random;
    use crate::{Backend, Pool};

    fn numbers(name: &str, len: usize) -> Vec<f32> {
        random(name, &[len]).unwrap().to_vec1().unwrap()
    }

    /// The gradient of some of 6 blocks of 16 tokens.
    fn gradient(workers: usize, o: usize, i: usize, blocks: &[usize]) -> Tensor {
        let (dy, x) = (numbers("dy", 96 * o), numbers("x", 96 * i));
        let of = |all: &[f32], width: usize| -> Vec<f32> {
            blocks.iter().flat_map(|b| all[b * 16 * width..][..16 * width].to_vec()).collect()
        };
        let pool = Pool::new(workers);
        weight_gradient(&pool, &of(&dy, o), o, &of(&x, i), i, 16).unwrap()
    }

    #[test]
    fn gradients_of_a_weight_have_the_same_bits_whoever_has_which_blocks() {
        for (o, i) in [(7, 5), (97, 344), (200, 64), (12, 300), (1, 1)] {
            let all = gradient(1, o, i, &[0, 1, 2, 3, 4, 5]);
            let parts = gradient(2, o, i, &[5, 1]);
            for other in [&[0, 4][..], &[3], &[2]] {
                add_sums(&Backend::serial(), &parts, &gradient(3, o, i, other)).unwrap();
            }
            let bits = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<u32>().unwrap();
            assert_eq!(bits(&all), bits(&parts));
            let found = values_at(&Backend::cpu(2), &all, 0..o * i).unwrap();
            let (dy, x) = (numbers("dy", 96 * o), numbers("x", 96 * i));
            for (index, found) in found.to_vec1::<f32>().unwrap().into_iter().enumerate() {
                let term =
                    |t: usize| f64::from(dy[t * o + index / i]) * f64::from(x[t * i + index % i]);
                let wanted: f64 = (0..96).map(term).sum();
                let all: f64 = (0..96).map(|t| term(t).abs()).sum();
                let error = (f64::from(found) - wanted).abs();
                assert!(error < all * f64::from(f32::EPSILON), "{index}: {found} {wanted}");
            }
        }
    }

    #[test]
    fn rows_of_a_table_have_the_same_bits_whoever_has_which_blocks() {
        let (width, rows) = (5, 131);
        let ids: Vec<u32> = (0..96).map(|t| (t * t * 37 + t / 7) % 4 * 41).collect();
        let dy = numbers("dy", 96 * width);
        let of = |blocks: &[usize]| {
            let ids: Vec<u32> = blocks.iter().flat_map(|b| ids[b * 16..][..16].to_vec()).collect();
            let dy: Vec<f32> = blocks.iter().flat_map(|b| dy[b * 80..][..80].to_vec()).collect();
            let mut sums = Sums::of(rows * width);
            sums.add_rows(&Pool::new(2), &ids, &dy, width, 16);
            sums.tensor().unwrap()
        };
        let (all, parts) = (of(&[0, 1, 2, 3, 4, 5]), of(&[4, 2, 0]));
        add_sums(&Backend::serial(), &parts, &of(&[5, 3, 1])).unwrap();
        let values = |t| values_at(&Backend::serial(), t, 0..rows * width).unwrap();
        assert_eq!(
            values(&all).to_vec1::<f32>().unwrap(),
            values(&parts).to_vec1::<f32>().unwrap()
        );
        let mut wanted = vec![0.0; rows * width];
        for (t, id) in ids.iter().enumerate() {
            (0..width)
                .for_each(|d| wanted[*id as usize * width + d] += f64::from(dy[t * width + d]));
        }
        for (found, wanted) in values(&all).to_vec1::<f32>().unwrap().into_iter().zip(wanted) {
            assert!((f64::from(found) - wanted).abs() < 2e-6);
        }
    }

    #[test]
    fn tokens_that_are_no_whole_blocks_are_refused() {
        let message = whole_blocks(33, 16).unwrap_err().to_string();
        assert!(message.contains("found 33 tokens, expected whole blocks of 16"), "{message}");
    }
}
