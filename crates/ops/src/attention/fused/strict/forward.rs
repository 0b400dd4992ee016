//! Forward: for some query rows at a time, key block by key block, `out += 2^m (p v)`, `sum += 2^m (sum of p)`.
//!
//! Of a block piece by piece, in order, as the fast kernel goes through all: maxima are multiples of the bins' width, so that going
//! over to a larger one rounds nothing.

use std::any::Any;
use std::f64::consts::LOG2_E;
use std::sync::Mutex;

use annulus_sequence::Spans;
use candle_core::{DType, Result, Tensor};

use super::super::inputs::{Held, contiguous, guests};
use super::super::pack::{Interleaved, Natural, Panels, units};
use super::super::pieces::{Extent, Piece, ROWS};
use super::super::scores::{Fold, STEP, hide};
use super::super::{Shelf, lock, narrow};
use super::blocks::{Inputs, Place};
use super::weigh::{AddRows, AddWeights};
use crate::Pool;
use crate::attention::sizes::Queries;
use crate::attention::{Attended, Progress, State, Tile};
use crate::order_free::{WIDTH, length, quotient};
use crate::rows::{tensor, unwritten};
use crate::vector::product::{self, Left, Onto, Product, Right};
use crate::vector::{Choice, Dispatch, Instructions, Machine, PANEL};

/// What is carried across tiles and hops.
#[derive(Debug)]
pub(crate) struct Forward {
    sizes: Queries,
    instructions: Instructions,
    block: usize,
    /// What scores are multiplied by: `scale log2 e`.
    scale: f32,
    q: Tensor,
    /// Unnormalised output, order-free sums of [B, Hq, Sq, D].
    out: Vec<u32>,
    /// Sums of weights, of [B, Hq, Sq, 1].
    sum: Vec<u32>,
    scratch: Shelf<Scratch>,
}

/// The sums of a block of query rows.
#[derive(Debug)]
struct Rows<'a> {
    out: &'a mut [u32],
    sum: &'a mut [u32],
}

/// A worker's copy of a block of query rows, and what is between the products.
#[derive(Debug, Default)]
struct Scratch {
    q: Vec<f32>,
    scores: Vec<f32>,
    /// What the block of keys has come to so far.
    out: Vec<f32>,
    maximum: Vec<f32>,
    sum: Vec<f32>,
    kept: Vec<f32>,
    shifts: Vec<i32>,
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
    pub(crate) fn new(
        (instructions, block): (Instructions, usize),
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
            scratch: Shelf::default(),
        })
    }

    /// Folds one tile into the state.
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
        let inputs = Inputs::new((self.sizes, keys), sources, tile, (self.block, Some(ROWS)))?;
        let state = Rows::of(self.sizes, [&mut self.out, &mut self.sum]).map(Mutex::new).collect();
        let (scale, scratch) = (self.scale, &self.scratch);
        let fold = TileFold { pool, inputs, scale, state, scratch, progress };
        self.instructions.with(narrow(&sources), fold)
    }

    /// Divides by the sums and casts.
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
    /// All blocks of all heads.
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
        let blocks = inputs.queries.count();
        let jobs = super::super::heaviest_first(inputs.heads(), blocks, |head, block| {
            inputs.reach(Place { head, block }).len()
        });
        pool.watched(jobs, self.progress, |(head, block)| {
            let mut rows = lock(&self.state[head * blocks + block]);
            let place = Place { head, block };
            self.scratch.with(|scratch| {
                scratch.enter(machine, inputs, place);
                for pieces in inputs.columns.by_block(inputs.reach(place)) {
                    scratch.begin();
                    for column in pieces {
                        if let Some(piece) = inputs.piece(place, column) {
                            let keys = packed.of(machine, inputs, (head, column, &piece));
                            let meeting = Meeting { place, piece: &piece, keys, scale: self.scale };
                            scratch.attend(machine, inputs, &meeting);
                        }
                    }
                    scratch.end(machine, inputs, place, &mut rows);
                }
            });
        })
    }
}

/// Query rows and what they see of a piece of keys.
struct Meeting<'a> {
    place: Place,
    piece: &'a Piece,
    /// Keys in panels, values interleaved, from the piece's first on.
    keys: [&'a [f32]; 2],
    scale: f32,
}

/// Keys and values of a tile as right factors, once for all query rows; every piece in whole panels.
struct Packed {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Packed {
    fn new<M: Machine>(machine: M, inputs: &Inputs<'_>, pool: &Pool) -> Packed {
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        let (blocks, rows) = (inputs.columns.count(), inputs.columns.all_padded());
        let all = inputs.kv_heads() * rows;
        // SAFETY: blocks cover both, and each is written whole.
        let (mut k, mut v) =
            unsafe { (unwritten(all * units::<M>(dim)), unwritten(units::<M>(all) * width)) };
        let size = |index: usize| inputs.columns.rows[index % blocks].len().next_multiple_of(PANEL);
        let count = inputs.kv_heads() * blocks;
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

    /// Those of a query head that a piece begins with.
    fn of<M: Machine>(
        &self,
        _: M,
        inputs: &Inputs<'_>,
        (head, column, piece): (usize, usize, &Piece),
    ) -> [&[f32]; 2] {
        let within = piece.columns.start - inputs.columns.rows[column].start;
        let row = head / inputs.group() * inputs.columns.all_padded()
            + inputs.columns.padded(column)
            + within;
        let k = &self.k[row * units::<M>(inputs.sizes.dim)..];
        [k, &self.v[row / M::UNIT * inputs.width()..]]
    }
}

/// A slice in parts of these lengths.
fn cut(mut all: &mut [f32], lengths: impl Iterator<Item = usize>) -> Vec<&mut [f32]> {
    let next = |length: usize| {
        let (part, rest) = std::mem::take(&mut all).split_at_mut(length);
        all = rest;
        part
    };
    lengths.map(next).collect()
}

impl Scratch {
    /// Copies in a block of query rows.
    fn enter<M: Machine>(&mut self, machine: M, inputs: &Inputs<'_>, place: Place) {
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        self.q.resize(ROWS * width, 0.0);
        self.out.resize(ROWS * width, 0.0);
        self.scores.resize(ROWS * STEP, 0.0);
        for of_row in [&mut self.maximum, &mut self.sum, &mut self.kept] {
            of_row.resize(ROWS, 0.0);
        }
        self.shifts.resize(ROWS, 0);
        inputs.q.copy(machine, inputs.rows(place), dim, &mut self.q);
        machine.call(Natural { rows: &mut self.q, step: width, width });
    }

    /// Another block of keys.
    fn begin(&mut self) {
        self.out.fill(0.0);
        self.sum.fill(0.0);
        self.maximum.fill(f32::NEG_INFINITY);
    }

    /// Adds what it came to.
    fn end<M: Machine>(
        &mut self,
        machine: M,
        inputs: &Inputs<'_>,
        place: Place,
        rows: &mut Rows<'_>,
    ) {
        let (dim, step, count) = (inputs.sizes.dim, inputs.width(), inputs.spans(place).len());
        machine.call(AddWeights {
            sums: rows.sum,
            weights: &self.sum[..count],
            maxima: &self.maximum[..count],
            shifts: &mut self.shifts[..count],
        });
        let shifts = &self.shifts[..count];
        machine.call(AddRows {
            sums: rows.out,
            numbers: &self.out,
            step,
            dim,
            factor: 1.0,
            shifts,
        });
    }

    /// Folds in what the rows see of a piece.
    fn attend<M: Machine>(&mut self, machine: M, inputs: &Inputs<'_>, meeting: &Meeting<'_>) {
        let Meeting { place, piece, keys: [k, v], scale } = *meeting;
        let (width, spans, columns) = (inputs.width(), inputs.spans(place), piece.width());
        self.score(machine, (piece, spans), k, (width, units::<M>(inputs.sizes.dim)));
        let weights = &mut self.scores[..spans.len().next_multiple_of(product::ROWS) * STEP];
        machine.call(Fold {
            scores: weights,
            columns,
            scale,
            grid: WIDTH as f32,
            maximum: &mut self.maximum,
            sum: &mut self.sum,
            kept: &mut self.kept,
        });
        if let Some(drop) = inputs.drop(place, piece) {
            machine.call(drop.of(weights));
        }
        machine.call(Natural { rows: weights, step: STEP, width: columns });
        for Extent { rows, columns: seen } in piece.extents(spans) {
            machine.call(Product {
                a: Left::new(&self.scores[rows.start * STEP + seen.start / M::UNIT..], STEP, 1),
                b: Right { units: &v[seen.start / M::UNIT * width..], panel: PANEL, depth: width },
                c: &mut self.out[rows.start * width..],
                step: width,
                rows: rows.len(),
                panels: width / PANEL,
                depth: units::<M>(seen.len()),
                onto: Onto::Scaled(&self.kept[rows]),
            });
        }
    }

    /// Scores of the rows and what they see of the keys of a piece.
    #[inline(always)]
    fn score<M: Machine>(
        &mut self,
        machine: M,
        (piece, spans): (&Piece, &[Spans]),
        k: &[f32],
        (width, depth): (usize, usize),
    ) {
        for Extent { rows, columns } in piece.extents(spans) {
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
        if piece.is_masked() {
            hide(&mut self.scores, spans, (&piece.columns, &piece.seen));
        }
    }
}
