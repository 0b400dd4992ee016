//! Forward: for some query rows at a time, key block by key block, `out += 2^m (p v)`, `sum += 2^m (sum of p)`.
//!
//! A block is computed piece by piece, in order, as the fast kernel computes all pieces: maxima are multiples of the bins' width, so that
//! moving to a larger one rounds nothing.

use std::f64::consts::LOG2_E;

use candle_core::{DType, Result, Tensor};
use parking_lot::Mutex;

use super::super::folding::{Folding, Meeting};
use super::super::inputs::{Held, contiguous, guests};
use super::super::pack::{Interleaved, Panels, units};
use super::super::pieces::{Piece, ROWS};
use super::super::{Shelf, heaviest_first, narrow};
use super::blocks::{Inputs, Place};
use super::weigh::{AddRows, AddWeights};
use crate::Pool;
use crate::attention::sizes::Queries;
use crate::attention::{Attended, Progress, State, Tile};
use crate::order_free::{WIDTH, length, quotient};
use crate::rows::{tensor, unwritten};
use crate::vector::{Choice, Dispatch, Instructions, Machine, PANEL};

/// The running state across tiles and hops.
#[derive(Debug)]
pub(crate) struct Forward {
    sizes: Queries,
    instructions: Instructions,
    block: usize,
    /// The factor of scores: `scale log2 e`.
    scale: f32,
    q: Tensor,
    /// The unnormalized output, order-free sums of [B, Hq, Sq, D].
    out: Vec<u32>,
    /// The sums of weights, order-free, of [B, Hq, Sq, 1].
    sum: Vec<u32>,
}

/// The sums of a block of query rows.
#[derive(Debug)]
struct Rows<'a> {
    out: &'a mut [u32],
    sum: &'a mut [u32],
}

/// A worker's query rows with the partial result of a block of keys, and the number of bins by which each row's result moves.
#[derive(Debug, Default)]
struct Scratch {
    folding: Folding,
    shifts: Vec<i32>,
}

impl State for Forward {}

impl Forward {
    pub(crate) fn new(
        instructions: Instructions,
        block: usize,
        q: &Tensor,
        scale: f64,
    ) -> Result<Forward> {
        instructions.check()?;
        let sizes = Queries::new(q, scale)?;
        let rows = sizes.batch * sizes.heads * sizes.rows;
        Ok(Forward {
            sizes,
            instructions,
            block,
            scale: (scale * LOG2_E) as f32,
            q: contiguous(q)?,
            out: vec![0; rows * length(sizes.dim)],
            sum: vec![0; rows * length(1)],
        })
    }

    /// Folds one tile into the running state.
    pub(crate) fn fold(
        &mut self,
        pool: &Pool,
        tile: &Tile<'_>,
        progress: Progress<'_>,
    ) -> Result<()> {
        let keys = self.sizes.keys(tile)?;
        let [k, v] = [guests(tile.k)?, guests(tile.v)?];
        let [q, k, v] = [Held::new(&self.q)?, Held::new(&k)?, Held::new(&v)?];
        let sources = [q.source(), k.source(), v.source()];
        let inputs = Inputs::new(self.sizes, keys, sources, tile, self.block, Some(ROWS))?;
        let state = Rows::of(self.sizes, [&mut self.out, &mut self.sum]).map(Mutex::new).collect();
        let (scale, scratch) = (self.scale, Shelf::default());
        let fold = TileFold { pool, inputs, scale, state, scratch, progress };
        self.instructions.with(narrow(&sources), fold)
    }

    /// Divides by the sums, and casts.
    pub(crate) fn finish(mut self, pool: &Pool) -> Result<Attended> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        // SAFETY: `quotient` writes all of every row.
        let mut out = unsafe { unwritten(batch * heads * rows * dim) };
        let mut lse = vec![0.0; batch * heads * rows];
        let places = out.chunks_mut(ROWS * dim).zip(lse.chunks_mut(ROWS));
        let sums =
            self.out.chunks_mut(ROWS * length(dim)).zip(self.sum.chunks_mut(ROWS * length(1)));
        pool.each(sums.zip(places), |((sums, divisors), (out, lse))| {
            let rows = sums.chunks(length(dim)).zip(divisors.chunks(length(1)));
            for ((sum, divisor), (out, lse)) in rows.zip(out.chunks_mut(dim).zip(lse)) {
                *lse = quotient(sum, divisor, out);
            }
        });
        Ok(Attended {
            lse: tensor(pool, lse, (batch, heads, rows), DType::F32)?,
            out: tensor(pool, out, self.sizes.shape(), self.q.dtype())?,
        })
    }
}

impl<'a> Rows<'a> {
    /// The sums of all heads, cut into blocks.
    fn of(
        Queries { rows, dim, .. }: Queries,
        [out, sum]: [&'a mut [u32]; 2],
    ) -> impl Iterator<Item = Rows<'a>> {
        let blocks = move |all: &'a mut [u32], row: usize| {
            all.chunks_mut(rows * row).flat_map(move |of_head| of_head.chunks_mut(ROWS * row))
        };
        let both = blocks(out, length(dim)).zip(blocks(sum, length(1)));
        both.map(|(out, sum)| Rows { out, sum })
    }
}

/// A tile to be folded into the running state.
struct TileFold<'a> {
    pool: &'a Pool,
    inputs: Inputs<'a>,
    scale: f32,
    state: Vec<Mutex<Rows<'a>>>,
    scratch: Shelf<Scratch>,
    progress: Progress<'a>,
}

impl Choice for TileFold<'_> {
    type Output = Result<()>;

    /// Runs a job for each block of query rows of a head.
    fn with<M: Machine>(self, machine: M) -> Result<()> {
        let (inputs, pool) = (&self.inputs, self.pool);
        let packed = Packed::new(machine, inputs, pool);
        let blocks = inputs.queries.count();
        let jobs = heaviest_first(inputs.dims.heads(), blocks, |head, block| {
            inputs.reach(Place { head, block }).len()
        });
        pool.watched(jobs, self.progress, |(head, block)| {
            let mut rows = self.state[head * blocks + block].lock();
            let place = Place { head, block };
            self.scratch.with(|scratch| {
                scratch.folding.enter(
                    machine,
                    inputs.q,
                    inputs.rows(place),
                    inputs.dims.queries.dim,
                );
                for pieces in inputs.columns.by_block(inputs.reach(place)) {
                    scratch.folding.begin();
                    for column in pieces {
                        if let Some(piece) = inputs.piece(place, column) {
                            let meeting =
                                packed.met::<M>(inputs, place, column, &piece, self.scale);
                            scratch.folding.attend(machine, &meeting);
                        }
                    }
                    scratch.add_to(machine, inputs.dims.queries.dim, &mut rows);
                }
            });
        })
    }
}

/// Keys and values of a tile as right factors, packed once for all query rows, with every piece padded to whole panels.
struct Packed {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Packed {
    fn new<M: Machine>(machine: M, inputs: &Inputs<'_>, pool: &Pool) -> Packed {
        let (dim, width) = (inputs.dims.queries.dim, inputs.dims.width());
        let (blocks, rows) = (inputs.columns.count(), inputs.columns.all_padded());
        let all = inputs.dims.kv_heads() * rows;
        // SAFETY: blocks cover both, and each is written whole.
        let (mut k, mut v) =
            unsafe { (unwritten(all * units::<M>(dim)), unwritten(units::<M>(all) * width)) };
        let size = |index: usize| inputs.columns.rows[index % blocks].len().next_multiple_of(PANEL);
        let count = inputs.dims.kv_heads() * blocks;
        let k_parts = cut(&mut k, (0..count).map(|index| size(index) * units::<M>(dim)));
        let v_parts = cut(&mut v, (0..count).map(|index| units::<M>(size(index)) * width));
        pool.each(k_parts.into_iter().zip(v_parts).enumerate(), |(index, (to_k, to_v))| {
            let rows = inputs.columns(index / blocks, index % blocks);
            let mut from = vec![0.0; size(index) * width];
            inputs.k.copy(machine, rows.clone(), dim, &mut from);
            machine.call(Panels { from: &from, to: to_k, step: width, width: dim });
            inputs.v.copy(machine, rows, dim, &mut from);
            machine.call(Interleaved { from: &from, to: to_v, step: width });
        });
        Packed { k, v }
    }

    /// What some query rows see of a piece.
    fn met<'a, M: Machine>(
        &'a self,
        inputs: &Inputs<'a>,
        place: Place,
        column: usize,
        piece: &'a Piece,
        scale: f32,
    ) -> Meeting<'a> {
        let (dim, columns) = (inputs.dims.queries.dim, &inputs.columns);
        let within = piece.columns.start - columns.rows[column].start;
        let first = place.head / inputs.dims.group() * columns.all_padded();
        let row = first + columns.padded(column) + within;
        let k = &self.k[row * units::<M>(dim)..];
        Meeting {
            piece,
            spans: inputs.spans(place),
            keys: [k, &self.v[row / M::UNIT * inputs.dims.width()..]],
            exist: piece.columns.len(),
            dim,
            scale,
            grid: WIDTH as f32,
            drop: inputs.drop(place, piece),
        }
    }
}

/// A slice cut into parts of these lengths.
fn cut(mut all: &mut [f32], lengths: impl Iterator<Item = usize>) -> Vec<&mut [f32]> {
    let next = |length: usize| {
        let (part, rest) = std::mem::take(&mut all).split_at_mut(length);
        all = rest;
        part
    };
    lengths.map(next).collect()
}

impl Scratch {
    /// Adds the partial result of a block of keys to the rows' sums.
    fn add_to<M: Machine>(&mut self, machine: M, dim: usize, rows: &mut Rows<'_>) {
        let (Folding { out, maximum, sum, .. }, shifts) = (&self.folding, &mut self.shifts);
        let count = rows.sum.len() / length(1);
        shifts.resize(ROWS, 0);
        machine.call(AddWeights {
            sums: rows.sum,
            weights: &sum[..count],
            maxima: &maximum[..count],
            shifts: &mut shifts[..count],
        });
        machine.call(AddRows {
            sums: rows.out,
            numbers: out,
            step: dim.next_multiple_of(PANEL),
            dim,
            factor: 1.0,
            shifts: &shifts[..count],
        });
    }
}
