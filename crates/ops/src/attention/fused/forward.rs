//! Forward: for every block of query rows, piece by piece, `scores = q kT`, fold, `out = kept out + weights v`.
#![expect(unsafe_code, reason = "buffers that are written before they are read")]

use std::borrow::Cow;
use std::f32::consts::LN_2;
use std::f64::consts::LOG2_E;

use candle_core::{DType, Result, Tensor};
use parking_lot::Mutex;

use super::folding::{Folding, Meeting};
use super::inputs::{Held, Inputs, Place, contiguous, guests};
use super::pack::{Interleaved, Panels, units};
use super::pieces::{COLUMNS, ROWS};
use super::{Shelf, blocks, heaviest_first, narrow};
use crate::Pool;
use crate::attention::sizes::Queries;
use crate::attention::{Attended, Progress, State, Tile};
use crate::rows::{tensor, unwritten};
use crate::vector::{Choice, Dispatch, Instructions, Machine};

/// The running state across tiles and hops.
#[derive(Debug)]
pub(super) struct Forward {
    sizes: Queries,
    instructions: Instructions,
    /// The factor of scores: `scale log2 e`.
    scale: f32,
    q: Tensor,
    /// The unnormalized output, [B, Hq, Sq, D]; 0 for rows whose sum is 0, whatever is stored.
    out: Vec<f32>,
    /// The running maximum of multiplied scores, [B, Hq, Sq]; -inf where nothing was seen.
    maximum: Vec<f32>,
    /// The running sum of weights, [B, Hq, Sq].
    sum: Vec<f32>,
}

/// The running state of a block of query rows.
#[derive(Debug)]
struct Rows<'a> {
    out: &'a mut [f32],
    maximum: &'a mut [f32],
    sum: &'a mut [f32],
}

impl State for Forward {}

impl Forward {
    pub(super) fn new(instructions: Instructions, q: &Tensor, scale: f64) -> Result<Forward> {
        instructions.check()?;
        let sizes = Queries::new(q, scale)?;
        let rows = sizes.batch * sizes.heads * sizes.rows;
        Ok(Forward {
            sizes,
            instructions,
            scale: (scale * LOG2_E) as f32,
            q: contiguous(q)?,
            // SAFETY: rows are read only where their sum is not 0, and then they were written.
            out: unsafe { unwritten(rows * sizes.dim) },
            maximum: vec![f32::NEG_INFINITY; rows],
            sum: vec![0.0; rows],
        })
    }

    /// Folds one tile into the running state.
    pub(super) fn fold(
        &mut self,
        pool: &Pool,
        tile: &Tile<'_>,
        progress: Progress<'_>,
    ) -> Result<()> {
        let keys = self.sizes.keys(tile)?;
        let [k, v] = [guests(tile.k)?, guests(tile.v)?];
        let [q, k, v] = [Held::new(&self.q)?, Held::new(&k)?, Held::new(&v)?];
        let sources = [q.source(), k.source(), v.source()];
        let state = Rows::of(&self.sizes, [&mut self.out, &mut self.maximum, &mut self.sum]);
        let fold = TileFold {
            pool,
            inputs: Inputs::new(self.sizes, keys, sources, tile),
            scale: self.scale,
            state: state.map(Mutex::new).collect(),
            scratch: Shelf::default(),
            progress,
        };
        self.instructions.with(narrow(&sources), fold)
    }

    /// Divides by the sums, and casts.
    pub(super) fn finish(mut self, pool: &Pool) -> Result<Attended> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        let state = Rows::of(&self.sizes, [&mut self.out, &mut self.maximum, &mut self.sum]);
        pool.each(state.collect::<Vec<_>>(), |rows| rows.finish(dim));
        Ok(Attended {
            lse: tensor(pool, self.maximum, (batch, heads, rows), DType::F32)?,
            out: tensor(pool, self.out, self.sizes.shape(), self.q.dtype())?,
        })
    }
}

impl<'a> Rows<'a> {
    /// The output, maxima and sums of all heads, cut into blocks.
    fn of(
        &Queries { rows, dim, .. }: &Queries,
        [out, maximum, sum]: [&'a mut [f32]; 3],
    ) -> impl Iterator<Item = Rows<'a>> {
        blocks(out, rows * dim, ROWS * dim)
            .zip(blocks(maximum, rows, ROWS))
            .zip(blocks(sum, rows, ROWS))
            .map(|((out, maximum), sum)| Rows { out, maximum, sum })
    }

    /// Copies the state in, except for rows whose sum is 0.
    fn enter(&self, folding: &mut Folding, width: usize) {
        folding.begin();
        let dim = self.out.len() / self.sum.len();
        let rows = folding.out.chunks_mut(width).zip(self.out.chunks(dim)).zip(&*self.sum);
        for ((to, from), _) in rows.filter(|(_, sum)| **sum != 0.0) {
            to[..dim].copy_from_slice(from);
        }
        folding.maximum[..self.maximum.len()].copy_from_slice(self.maximum);
        folding.sum[..self.sum.len()].copy_from_slice(self.sum);
    }

    /// Copies the state back.
    fn leave(&mut self, folding: &Folding, width: usize) {
        let dim = self.out.len() / self.sum.len();
        for (to, from) in self.out.chunks_mut(dim).zip(folding.out.chunks(width)) {
            to.copy_from_slice(&from[..dim]);
        }
        self.maximum.copy_from_slice(&folding.maximum[..self.maximum.len()]);
        self.sum.copy_from_slice(&folding.sum[..self.sum.len()]);
    }

    /// Divides by the sums, and turns the maxima into log-sum-exps.
    fn finish(self, dim: usize) {
        let rows = self.out.chunks_mut(dim).zip(self.maximum).zip(self.sum);
        for ((out, maximum), &mut sum) in rows {
            if sum == 0.0 {
                out.fill(0.0);
            } else {
                for value in out {
                    *value /= sum;
                }
            }
            *maximum = *maximum * LN_2 + sum.ln();
        }
    }
}

/// A tile to be folded into the running state.
struct TileFold<'a> {
    pool: &'a Pool,
    inputs: Inputs<'a>,
    scale: f32,
    state: Vec<Mutex<Rows<'a>>>,
    scratch: Shelf<Folding>,
    progress: Progress<'a>,
}

impl Choice for TileFold<'_> {
    type Output = Result<()>;

    /// Runs a job for each block of query rows of a head.
    fn with<M: Machine>(self, machine: M) -> Result<()> {
        let (inputs, pool) = (&self.inputs, self.pool);
        let packed = Packed::new(machine, inputs, pool);
        let jobs = heaviest_first(inputs.dims.heads(), inputs.row_blocks(), |head, block| {
            inputs.reach(head, block).len()
        });
        pool.watched(jobs, self.progress, |(head, block)| {
            let mut rows = self.state[head * inputs.row_blocks() + block].lock();
            self.scratch.with(|folding| {
                folding.enter(machine, inputs.q, inputs.rows(head, block), inputs.dims.queries.dim);
                rows.enter(folding, inputs.dims.width());
                let reach = inputs.reach(head, block);
                for piece in reach.filter_map(|column| inputs.piece(head, block, column)) {
                    let place = Place { head, block, piece: &piece };
                    folding.attend(machine, &packed.met::<M>(inputs, place, self.scale));
                }
                rows.leave(folding, inputs.dims.width());
            });
        })
    }
}

/// Keys and values of a tile as right factors, packed once for all query rows.
struct Packed<'a> {
    /// Keys in panels, by KV head.
    k: Vec<f32>,
    /// Values as interleaved rows, by KV head.
    v: Cow<'a, [f32]>,
    /// Elements of a KV head, of keys and of values.
    strides: [usize; 2],
}

impl<'a> Packed<'a> {
    fn new<M: Machine>(machine: M, inputs: &Inputs<'a>, pool: &Pool) -> Packed<'a> {
        let (dim, width) = (inputs.dims.queries.dim, inputs.dims.width());
        let rows = inputs.column_blocks() * COLUMNS;
        let borrowed = inputs.v.rows_in_place(dim).filter(|_| M::UNIT == 1);
        let strides = [
            rows * units::<M>(dim),
            if borrowed.is_some() { inputs.dims.keys.rows } else { units::<M>(rows) } * width,
        ];
        // SAFETY: blocks of columns cover it, and each is written whole.
        let mut k = unsafe { unwritten(inputs.dims.kv_heads() * strides[0]) };
        let block = |index| (index / inputs.column_blocks(), index % inputs.column_blocks());
        pool.for_chunks(&mut k, COLUMNS * units::<M>(dim), |index, to| {
            let (head, column) = block(index);
            let mut from = vec![0.0; COLUMNS * width];
            inputs.k.copy(machine, inputs.columns(head, column), dim, &mut from);
            machine.call(Panels { from: &from, to, step: width, width: dim });
        });
        let v = borrowed.map_or_else(
            || {
                // SAFETY: likewise.
                let mut v = unsafe { unwritten(inputs.dims.kv_heads() * strides[1]) };
                pool.for_chunks(&mut v, units::<M>(COLUMNS) * width, |index, to| {
                    let (head, column) = block(index);
                    let mut from = vec![0.0; COLUMNS * width];
                    inputs.v.copy(machine, inputs.columns(head, column), dim, &mut from);
                    machine.call(Interleaved { from: &from, to, step: width });
                });
                Cow::Owned(v)
            },
            Cow::Borrowed,
        );
        Packed { k, v, strides }
    }

    /// What some query rows see of a piece.
    fn met<'b, M: Machine>(
        &'b self,
        inputs: &Inputs<'b>,
        place: Place<'b>,
        scale: f32,
    ) -> Meeting<'b> {
        let (dim, columns) = (inputs.dims.queries.dim, &place.piece.columns);
        let head = place.head / inputs.dims.group();
        let k = &self.k[head * self.strides[0] + columns.start * units::<M>(dim)..];
        let v = &self.v[head * self.strides[1] + columns.start / M::UNIT * inputs.dims.width()..];
        Meeting {
            piece: place.piece,
            spans: inputs.spans(place.head, place.block),
            keys: [k, v],
            exist: inputs.dims.keys.rows - columns.start,
            dim,
            scale,
            grid: 0.0,
            drop: inputs.drop(place),
        }
    }
}
