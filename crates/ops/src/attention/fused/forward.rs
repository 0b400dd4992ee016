//! Forward: for every block of query rows, piece by piece, `scores = q kT`, fold, `out = kept out + weights v`.
#![expect(unsafe_code, reason = "buffers that are written before they are read")]

use std::any::Any;
use std::borrow::Cow;
use std::f32::consts::LN_2;
use std::f64::consts::LOG2_E;
use std::sync::Mutex;

use annulus_sequence::Spans;
use candle_core::{DType, Result, Tensor};

use super::inputs::{Held, Inputs, Place, contiguous, guests};
use super::pack::{Interleaved, Natural, Panels, units};
use super::pieces::{COLUMNS, Extent, ROWS};
use super::scores::{Fold, STEP, hide};
use super::{Shelf, blocks, heaviest_first, lock, narrow};
use crate::Pool;
use crate::attention::sizes::Queries;
use crate::attention::{Attended, Progress, State, Tile};
use crate::rows::{tensor, unwritten};
use crate::vector::product::{self, Left, Onto, Product, Right};
use crate::vector::{Choice, Dispatch, Instructions, Machine, PANEL};

/// What is carried across tiles and hops.
#[derive(Debug)]
pub(super) struct Forward {
    sizes: Queries,
    instructions: Instructions,
    /// What scores are multiplied by: `scale log2 e`.
    scale: f32,
    q: Tensor,
    /// Unnormalised output, [B, Hq, Sq, D]; of a row whose sum is 0 it is 0, whatever stands here.
    out: Vec<f32>,
    /// Running maximum of multiplied scores, [B, Hq, Sq]; -inf where nothing was seen.
    maximum: Vec<f32>,
    /// Running sum of weights, [B, Hq, Sq].
    sum: Vec<f32>,
    scratch: Shelf<Scratch>,
}

/// The state of a block of query rows.
#[derive(Debug)]
struct Rows<'a> {
    out: &'a mut [f32],
    maximum: &'a mut [f32],
    sum: &'a mut [f32],
}

/// A worker's copy of a block of query rows and their state, in whole panels.
#[derive(Debug, Default)]
struct Scratch {
    q: Vec<f32>,
    scores: Vec<f32>,
    out: Vec<f32>,
    maximum: Vec<f32>,
    sum: Vec<f32>,
    kept: Vec<f32>,
}

impl State for Forward {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

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
            scratch: Shelf::default(),
        })
    }

    /// Folds one tile into the state.
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
            inputs: Inputs::new((self.sizes, keys), sources, tile),
            scale: self.scale,
            state: state.map(Mutex::new).collect(),
            scratch: &self.scratch,
            progress,
        };
        self.instructions.with(narrow(&sources), fold)
    }

    /// Divides by the sums and casts.
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
    /// All blocks of all heads, of output, maxima and sums.
    fn of(
        &Queries { rows, dim, .. }: &Queries,
        [out, maximum, sum]: [&'a mut [f32]; 3],
    ) -> impl Iterator<Item = Rows<'a>> {
        blocks(out, rows * dim, ROWS * dim)
            .zip(blocks(maximum, rows, ROWS))
            .zip(blocks(sum, rows, ROWS))
            .map(|((out, maximum), sum)| Rows { out, maximum, sum })
    }

    /// Divides by the sums, and makes log-sum-exps of the maxima.
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

/// A tile to be folded into the state.
struct TileFold<'a> {
    pool: &'a Pool,
    inputs: Inputs<'a>,
    scale: f32,
    state: Vec<Mutex<Rows<'a>>>,
    scratch: &'a Shelf<Scratch>,
    progress: Progress<'a>,
}

impl Choice for TileFold<'_> {
    type Output = Result<()>;

    /// A job is a block of query rows of a head.
    fn with<M: Machine>(self, machine: M) -> Result<()> {
        let (inputs, pool) = (&self.inputs, self.pool);
        let packed = Packed::new(machine, inputs, pool);
        let jobs = heaviest_first(inputs.heads(), inputs.row_blocks(), |head, block| {
            inputs.reach(head, block).len()
        });
        pool.watched(jobs, self.progress, |(head, block)| {
            let mut rows = lock(&self.state[head * inputs.row_blocks() + block]);
            self.scratch.with(|scratch| {
                scratch.enter(machine, inputs, (head, block), &rows);
                let reach = inputs.reach(head, block);
                for piece in reach.filter_map(|column| inputs.piece(head, block, column)) {
                    let place = Place { head, block, piece: &piece };
                    scratch.attend(machine, inputs, (place, self.scale), &packed);
                }
                scratch.leave(inputs, &mut rows);
            });
        })
    }
}

/// Keys and values of a tile as right factors, once for all query rows.
struct Packed<'a> {
    /// Panels, by key/value head.
    k: Vec<f32>,
    /// Interleaved rows, by key/value head.
    v: Cow<'a, [f32]>,
    /// Elements of a key/value head in each.
    strides: [usize; 2],
}

impl<'a> Packed<'a> {
    fn new<M: Machine>(machine: M, inputs: &Inputs<'a>, pool: &Pool) -> Packed<'a> {
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        let rows = inputs.column_blocks() * COLUMNS;
        let borrowed = inputs.v.rows_in_place(dim).filter(|_| M::UNIT == 1);
        let strides = [
            rows * units::<M>(dim),
            if borrowed.is_some() { inputs.keys.rows } else { units::<M>(rows) } * width,
        ];
        // SAFETY: blocks of columns cover it, and each is written whole.
        let mut k = unsafe { unwritten(inputs.kv_heads() * strides[0]) };
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
                let mut v = unsafe { unwritten(inputs.kv_heads() * strides[1]) };
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
}

impl Scratch {
    /// Copies in a block of query rows and its state.
    fn enter<M: Machine>(
        &mut self,
        machine: M,
        inputs: &Inputs<'_>,
        (head, block): (usize, usize),
        state: &Rows<'_>,
    ) {
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        self.q.resize(ROWS * width, 0.0);
        self.out.resize(ROWS * width, 0.0);
        self.scores.resize(ROWS * STEP, 0.0);
        self.kept.resize(ROWS, 0.0);
        inputs.q.copy(machine, inputs.rows(head, block), dim, &mut self.q);
        machine.call(Natural { rows: &mut self.q, step: width, width });
        let rows = self.out.chunks_mut(width).zip(state.out.chunks(dim));
        for ((to, from), &sum) in rows.zip(&*state.sum) {
            if sum == 0.0 {
                to.fill(0.0);
            } else {
                to[..dim].copy_from_slice(from);
            }
        }
        for (to, from, rest) in [
            (&mut self.maximum, &*state.maximum, f32::NEG_INFINITY),
            (&mut self.sum, state.sum, 0.0),
        ] {
            to.clear();
            to.extend_from_slice(from);
            to.resize(ROWS, rest);
        }
    }

    /// Copies the state out again.
    fn leave(&self, inputs: &Inputs<'_>, state: &mut Rows<'_>) {
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        for (to, from) in state.out.chunks_mut(dim).zip(self.out.chunks(width)) {
            to.copy_from_slice(&from[..dim]);
        }
        state.maximum.copy_from_slice(&self.maximum[..state.maximum.len()]);
        state.sum.copy_from_slice(&self.sum[..state.sum.len()]);
    }

    /// Scores of the rows and what they see of the keys of a piece.
    #[inline(always)]
    fn score<M: Machine>(
        &mut self,
        machine: M,
        (place, spans): (Place<'_>, &[Spans]),
        k: &[f32],
        (width, depth): (usize, usize),
    ) {
        for Extent { rows, columns } in place.piece.extents(spans) {
            machine.call(Product {
                a: Left::new(&self.q[rows.start * width..], width, 1),
                b: Right { units: &k[columns.start * depth..], panel: depth * PANEL, depth: PANEL },
                c: &mut self.scores[rows.start * STEP + columns.start..],
                step: STEP,
                rows: rows.len(),
                panels: columns.len() / PANEL,
                depth,
                onto: Onto::Nothing,
            });
        }
        if place.piece.is_masked() {
            hide(&mut self.scores, spans, (&place.piece.columns, &place.piece.seen));
        }
    }

    /// Scores become weights: what is known of the rows is scaled to their new maxima.
    #[inline(always)]
    fn weigh<M: Machine>(
        &mut self,
        machine: M,
        inputs: &Inputs<'_>,
        (place, scale): (Place<'_>, f32),
        rows: usize,
    ) {
        let columns = place.piece.width();
        let weights = &mut self.scores[..rows * STEP];
        machine.call(Fold {
            scores: weights,
            columns,
            scale,
            grid: 0.0,
            maximum: &mut self.maximum,
            sum: &mut self.sum,
            kept: &mut self.kept,
        });
        if let Some(drop) = inputs.drop(place) {
            machine.call(drop.of(weights));
        }
        machine.call(Natural { rows: weights, step: STEP, width: columns });
    }

    /// Folds in what the rows see of a piece.
    fn attend<M: Machine>(
        &mut self,
        machine: M,
        inputs: &Inputs<'_>,
        (place, scale): (Place<'_>, f32),
        packed: &Packed<'_>,
    ) {
        let (width, columns) = (inputs.width(), &place.piece.columns);
        let depth = units::<M>(inputs.sizes.dim);
        let kv_head = place.head / inputs.group();
        let v = &packed.v[kv_head * packed.strides[1] + columns.start / M::UNIT * width..];
        let spans = inputs.spans(place.head, place.block);
        let k = &packed.k[kv_head * packed.strides[0] + columns.start * depth..];
        self.score(machine, (place, spans), k, (width, depth));
        let rows = spans.len().next_multiple_of(product::ROWS);
        self.weigh(machine, inputs, (place, scale), rows);
        let exist = inputs.keys.rows - columns.start;
        for Extent { rows, columns: seen } in place.piece.extents(spans) {
            machine.call(Product {
                a: Left::new(&self.scores[rows.start * STEP + seen.start / M::UNIT..], STEP, 1),
                b: Right { units: &v[seen.start / M::UNIT * width..], panel: PANEL, depth: width },
                c: &mut self.out[rows.start * width..],
                step: width,
                rows: rows.len(),
                panels: width / PANEL,
                depth: units::<M>(seen.end.min(exist) - seen.start),
                onto: Onto::Scaled(&self.kept[rows.start..]),
            });
        }
    }
}
