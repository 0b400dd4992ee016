//! Backward, from the final log-sum-exp: nothing is rescaled, gradients just add.
//!
//! ```text
//! p = exp(scale q kT - lse)    dp = g vT    ds = p (dp - delta)    delta = sum(g out)
//! dv += pT g    dk += scale dsT q    dq += scale ds k
//! ```
//!
//! A job is a block of key columns. It alone adds to the gradients of its keys and values; jobs add to the gradients of the same queries
//! in a fixed order, so that sums have the same bits with any number of workers.

use std::f64::consts::LOG2_E;

use candle_core::{DType, Result, Tensor};
use parking_lot::Mutex;

use super::column::{Column, Context};
use super::inputs::{Held, Inputs, Source, contiguous, guests};
use super::pieces::{COLUMNS, ROWS};
use super::scores::RowProducts;
use super::turns::Turns;
use super::{Shelf, locked, narrow};
use crate::Pool;
use crate::attention::sizes::{Queries, wrong};
use crate::attention::{Attended, BackwardTile, KeyValueGradients, Prepared, Progress, State};
use crate::rows::{Elements, tensor, zeros};
use crate::vector::{Choice, Dispatch, Instructions, Machine, PANEL};

/// The state of backward across tiles.
#[derive(Debug)]
pub(super) struct Backward {
    sizes: Queries,
    instructions: Instructions,
    scale: f64,
    q: Tensor,
    gradient: Tensor,
    /// The log-sum-exp to base 2, +inf in rows that see nothing, so that their probabilities are 0; [B, Hq, Sq].
    shift: Vec<f32>,
    /// The sum over a row of output times its gradient, [B, Hq, Sq].
    delta: Vec<f32>,
    /// The accumulated gradient of the queries, [B, Hq, Sq, D].
    dq: Vec<f32>,
}

impl State for Backward {}

impl Backward {
    pub(super) fn new(
        pool: &Pool,
        instructions: Instructions,
        q: &Tensor,
        prepared: &Prepared,
        scale: f64,
    ) -> Result<Backward> {
        instructions.check()?;
        let sizes = Queries::new(q, scale)?;
        sizes.check(prepared)?;
        let (q, gradient) = (contiguous(q)?, contiguous(&prepared.gradient)?);
        let [shift, delta] = [&prepared.lse, &prepared.delta]
            .map(|statistic| Ok::<_, candle_core::Error>(Elements::of(pool, statistic)?.to_vec()));
        let dq = zeros(pool, q.elem_count());
        let (shift, delta) = (shift?, delta?);
        Ok(Backward { sizes, instructions, scale, q, gradient, shift, delta, dq })
    }

    /// Adds one tile to the gradient of the queries; returns the gradients of its keys and values, added to those that it carried.
    pub(super) fn tile(
        &mut self,
        pool: &Pool,
        BackwardTile { tile, carried }: BackwardTile<'_>,
        progress: Progress<'_>,
    ) -> Result<KeyValueGradients> {
        let Queries { batch, rows, dim, .. } = self.sizes;
        let keys = self.sizes.keys(&tile)?;
        let shape = (batch, keys.heads, keys.rows, dim);
        let mut dk = begun(pool, carried.as_ref().map(|carried| &carried.dk), shape)?;
        let mut dv = begun(pool, carried.as_ref().map(|carried| &carried.dv), shape)?;
        let [k, v] = [guests(tile.k)?, guests(tile.v)?];
        let [q, k, v, gradient] = [&self.q, &k, &v, &self.gradient].map(Held::new);
        let (q, k, v, gradient) = (q?, k?, v?, gradient?);
        let sources = [q.source(), k.source(), v.source()];
        let inputs = Inputs::new(self.sizes, keys, sources, &tile);
        let places = inputs.dims.heads() * inputs.row_blocks();
        let tile = TileGradients {
            pool,
            context: Context {
                inputs,
                gradient: gradient.source(),
                scale: self.scale as f32,
                exponent: (self.scale * LOG2_E) as f32,
                shift: &self.shift,
                delta: &self.delta,
                dq: locked(&mut self.dq, rows * dim, ROWS * dim),
                turns: Turns::new(places),
            },
            dk: locked(&mut dk, keys.rows * dim, COLUMNS * dim),
            dv: locked(&mut dv, keys.rows * dim, COLUMNS * dim),
            scratch: Shelf::default(),
            progress,
        };
        self.instructions.with(narrow(&sources), tile)?;
        let [dk, dv] = [dk, dv].map(|values| tensor(pool, values, shape, DType::F32));
        Ok(KeyValueGradients { dk: dk?, dv: dv? })
    }

    /// The gradient of the queries.
    pub(super) fn finish(self, pool: &Pool) -> Result<Tensor> {
        tensor(pool, self.dq, self.sizes.shape(), DType::F32)
    }
}

/// What gradients of this shape are added to: the carried ones, or zeros.
fn begun(
    pool: &Pool,
    carried: Option<&Tensor>,
    shape: (usize, usize, usize, usize),
) -> Result<Vec<f32>> {
    match carried {
        None => Ok(zeros(pool, shape.0 * shape.1 * shape.2 * shape.3)),
        Some(tensor) if tensor.dims4()? == shape => Ok(Elements::of(pool, tensor)?.to_vec()),
        Some(tensor) => {
            wrong(&format!("carried gradients of {:?}, expected {shape:?}", tensor.dims()))
        }
    }
}

/// A tile whose gradients are computed.
struct TileGradients<'a> {
    pool: &'a Pool,
    context: Context<'a>,
    dk: Vec<Mutex<&'a mut [f32]>>,
    dv: Vec<Mutex<&'a mut [f32]>>,
    scratch: Shelf<Column>,
    progress: Progress<'a>,
}

impl Choice for TileGradients<'_> {
    type Output = Result<()>;

    /// Runs a job for each block of key columns of a KV head, ordered by columns, so that workers are at different heads while there
    /// are enough, and no job waits for a later one.
    fn with<M: Machine>(self, machine: M) -> Result<()> {
        let inputs = &self.context.inputs;
        let reached_by = |head: usize, column: usize| {
            let blocks = 0..inputs.row_blocks();
            blocks.filter(move |&block| inputs.reach(head, block).contains(&column))
        };
        let (heads, group) = (0..inputs.dims.kv_heads(), inputs.dims.group());
        let jobs: Vec<(usize, usize)> = (0..inputs.column_blocks())
            .flat_map(|column| heads.clone().map(move |head| (head, column)))
            .filter(|&(head, column)| reached_by(head * group, column).next().is_some())
            .collect();
        self.pool.watched(jobs, self.progress, |(head, column)| {
            let block = head * inputs.column_blocks() + column;
            self.scratch.with(|scratch| {
                scratch.enter(machine, &self.context, head, column);
                let taker = self.context.turns.taker();
                for head in head * group..(head + 1) * group {
                    for block in reached_by(head, column) {
                        scratch.add(machine, &self.context, head, block, column, &taker);
                    }
                }
                scratch.leave(machine, &self.context, [&self.dk[block], &self.dv[block]]);
            });
        })
    }
}

/// The sum of output times gradient, and the log-sum-exp as a shift, for every query row.
pub(super) fn prepare(
    pool: &Pool,
    instructions: Instructions,
    attended: &Attended,
    gradient: &Tensor,
) -> Result<Prepared> {
    instructions.check()?;
    let Queries { batch, heads, rows, dim } = Queries::of(attended, gradient)?;
    let shape = (batch, heads, rows);
    let (out, gradient) = (contiguous(&attended.out)?, contiguous(gradient)?);
    let [held, held_gradient] = [&out, &gradient].map(Held::new);
    let (held, held_gradient) = (held?, held_gradient?);
    let sources = [held_gradient.source(), held.source()];
    let job = Delta { pool, dim, sources, sums: vec![0.0; batch * heads * rows] };
    let delta = tensor(pool, instructions.with(false, job), shape, DType::F32)?;
    let mut shift = Elements::of(pool, &attended.lse)?.to_vec();
    for shift in &mut shift {
        *shift = match *shift {
            f32::NEG_INFINITY => f32::INFINITY,
            lse => (f64::from(lse) * LOG2_E) as f32,
        };
    }
    let lse = tensor(pool, shift, shape, DType::F32)?;
    drop((held, held_gradient));
    Ok(Prepared { gradient, lse, delta })
}

struct Delta<'a> {
    pool: &'a Pool,
    dim: usize,
    sources: [Source<'a>; 2],
    sums: Vec<f32>,
}

impl Choice for Delta<'_> {
    type Output = Vec<f32>;

    fn with<M: Machine>(mut self, machine: M) -> Vec<f32> {
        let width = self.dim.next_multiple_of(PANEL);
        self.pool.for_chunks(&mut self.sums, ROWS, |block, to| {
            let [a, b] = self.sources.map(|source| {
                let mut rows = vec![0.0; ROWS * width];
                source.copy(machine, block * ROWS..block * ROWS + to.len(), self.dim, &mut rows);
                rows
            });
            let mut sums = [0.0; ROWS];
            machine.call(RowProducts { a: &a, b: &b, step: width, sums: &mut sums });
            to.copy_from_slice(&sums[..to.len()]);
        });
        self.sums
    }
}
