//! Backward from the final log-sum-exp, with order-free sums over pairs of blocks.
//!
//! A job is a block of keys of a KV head. It alone adds to the gradients of its keys and values, and it locks those of queries while
//! it adds to them, in any order of jobs. A pair of blocks is computed piece by piece, in order, in f32; only its result is added order-free.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use candle_core::{CpuStorage, Result, Storage, Tensor};
use parking_lot::Mutex;

use super::super::column::{Between, Room, Scene, along_rows, down_columns};
use super::super::inputs::{Held, Source, contiguous, guests};
use super::super::pack::{Panels, units};
use super::super::pieces::{Extent, Piece};
use super::super::{Shelf, narrow};
use super::blocks::{Blocks, Inputs, Place};
use super::weigh::AddRows;
use crate::Pool;
use crate::attention::sizes::{Queries, wrong};
use crate::attention::{BackwardTile, KeyValueGradients, Prepared, Progress, State};
use crate::order_free::{as_tensor, length};
use crate::rows::Elements;
use crate::vector::product::{Output, Product, ROWS};
use crate::vector::{Choice, Dispatch, Instructions, Machine, PANEL};

/// The state of backward across tiles.
#[derive(Debug)]
pub(crate) struct Backward {
    sizes: Queries,
    instructions: Instructions,
    block: usize,
    scale: f64,
    q: Tensor,
    gradient: Tensor,
    /// The log-sum-exp to base 2, +inf in rows that see nothing; [B, Hq, Sq].
    shift: Vec<f32>,
    /// The sum over a row of output times its gradient, [B, Hq, Sq].
    delta: Vec<f32>,
    /// The accumulated gradient of the queries, order-free sums of [B, Hq, Sq, D].
    dq: Vec<u32>,
}

impl State for Backward {}

impl Backward {
    pub(crate) fn new(
        pool: &Pool,
        instructions: Instructions,
        block: usize,
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
        let dq = vec![0; q.elem_count() / sizes.dim * length(sizes.dim)];
        let (shift, delta) = (shift?, delta?);
        Ok(Backward { sizes, instructions, block, scale, q, gradient, shift, delta, dq })
    }

    /// Adds one tile to the gradient of the queries; returns the gradients of its keys and values, added to those that it carried.
    pub(crate) fn tile(
        &mut self,
        pool: &Pool,
        BackwardTile { tile, carried }: BackwardTile<'_>,
        progress: Progress<'_>,
    ) -> Result<KeyValueGradients> {
        let Queries { batch, dim, .. } = self.sizes;
        let keys = self.sizes.keys(&tile)?;
        let dims = [batch, keys.heads, keys.rows, length(dim)];
        let mut dk = begun(carried.as_ref().map(|carried| &carried.dk), &dims)?;
        let mut dv = begun(carried.as_ref().map(|carried| &carried.dv), &dims)?;
        let [k, v] = [guests(tile.k)?, guests(tile.v)?];
        let [q, k, v, gradient] = [&self.q, &k, &v, &self.gradient].map(Held::new);
        let (q, k, v, gradient) = (q?, k?, v?, gradient?);
        let sources = [q.source(), k.source(), v.source()];
        let inputs = Inputs::new(self.sizes, keys, sources, &tile, self.block, None)?;
        let rows = inputs.queries.blocks();
        let columns = inputs.columns.blocks();
        let context = Context {
            inputs,
            gradient: gradient.source(),
            scale: self.scale as f32,
            exponent: (self.scale * LOG2_E) as f32,
            statistics: [&self.shift, &self.delta],
            dq: parted(&mut self.dq, &rows, dim),
        };
        let [dk_parts, dv_parts] = [&mut dk, &mut dv].map(|all| parted(all, &columns, dim));
        let sums = [dk_parts, dv_parts];
        let tile = TileGradients { pool, context, sums, scratch: Shelf::default(), progress };
        self.instructions.with(narrow(&sources), tile)?;
        Ok(KeyValueGradients { dk: as_tensor(dk, &dims)?, dv: as_tensor(dv, &dims)? })
    }

    /// The gradient of the queries, order-free sums.
    pub(crate) fn finish(self) -> Result<Tensor> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        as_tensor(self.dq, &[batch, heads, rows, length(dim)])
    }
}

/// The sums of these dimensions to add to: the carried ones, or sums of nothing.
fn begun(carried: Option<&Tensor>, dims: &[usize]) -> Result<Vec<u32>> {
    let Some(carried) = carried else { return Ok(vec![0; dims.iter().product()]) };
    let carried = carried.contiguous()?;
    let (storage, layout) = carried.storage_and_layout();
    match &*storage {
        Storage::Cpu(CpuStorage::U32(all)) if layout.dims() == dims => {
            Ok(all[layout.start_offset()..][..layout.shape().elem_count()].to_vec())
        }
        _ => {
            let found = (layout.dims(), carried.dtype());
            wrong(&format!("carried gradients of {found:?}, expected order-free sums of {dims:?}"))
        }
    }
}

/// Rows of sums of all heads, cut into blocks, each behind its own lock.
fn parted<'a>(
    mut all: &'a mut [u32],
    blocks: &[Range<usize>],
    dim: usize,
) -> Vec<Mutex<&'a mut [u32]>> {
    let mut parts = Vec::new();
    while !all.is_empty() {
        for block in blocks {
            let (part, rest) = std::mem::take(&mut all).split_at_mut(block.len() * length(dim));
            parts.push(Mutex::new(part));
            all = rest;
        }
    }
    parts
}

/// The state that the jobs of a tile share.
struct Context<'a> {
    inputs: Inputs<'a>,
    /// The gradient of the output.
    gradient: Source<'a>,
    scale: f32,
    exponent: f32,
    /// The shift and delta of each row.
    statistics: [&'a [f32]; 2],
    /// The queries' sums, by head and block.
    dq: Vec<Mutex<&'a mut [u32]>>,
}

/// A tile whose gradients are computed.
struct TileGradients<'a> {
    pool: &'a Pool,
    context: Context<'a>,
    /// The sums of keys and of values, by KV head and block.
    sums: [Vec<Mutex<&'a mut [u32]>>; 2],
    scratch: Shelf<Column>,
    progress: Progress<'a>,
}

impl Choice for TileGradients<'_> {
    type Output = Result<()>;

    /// Runs a job for each block of keys, ordered by columns, so that workers are at different heads while there are enough.
    fn with<M: Machine>(self, machine: M) -> Result<()> {
        let (context, inputs) = (&self.context, &self.context.inputs);
        let [dk, dv] = &self.sums;
        let (heads, group) = (0..inputs.dims.kv_heads(), inputs.dims.group());
        let columns: Vec<Range<usize>> = inputs.columns.all_by_block().collect();
        let queries: Vec<Range<usize>> = inputs.queries.all_by_block().collect();
        let reaches = |head: usize, queries: &Range<usize>, columns: &Range<usize>| {
            queries.clone().any(|block| {
                let reach = inputs.reach(Place { head, block });
                reach.start < columns.end && columns.start < reach.end
            })
        };
        let jobs: Vec<(usize, usize)> = (0..columns.len())
            .flat_map(|column| heads.clone().map(move |head| (head, column)))
            .filter(|&(head, column)| {
                queries.iter().any(|queries| reaches(head * group, queries, &columns[column]))
            })
            .collect();
        self.pool.watched(jobs, self.progress, |(head, column)| {
            self.scratch.with(|scratch| {
                let (block, columns) = (head * columns.len() + column, columns[column].clone());
                scratch.enter(machine, inputs, head, columns.clone());
                let (mut dk, mut dv) = (dk[block].lock(), dv[block].lock());
                for head in head * group..(head + 1) * group {
                    for (index, rows) in queries.iter().enumerate() {
                        if reaches(head, rows, &columns) {
                            let pair = Pair { head, rows: rows.clone(), columns: columns.clone() };
                            scratch.meet(machine, context, &pair, [&mut dk, &mut dv]);
                            let mut dq = context.dq[head * queries.len() + index].lock();
                            scratch.add_queries(machine, context, &mut dq);
                        }
                    }
                }
            });
        })
    }
}

/// A block of queries of a head and a block of keys, by their pieces.
struct Pair {
    head: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Where pieces padded to whole panels begin in a block's copy.
fn padded_from(blocks: &Blocks, pieces: &Range<usize>, piece: usize) -> usize {
    blocks.padded(piece) - blocks.padded(pieces.start)
}

/// A worker's copies of one block of keys and of the current query rows, in whole panels.
#[derive(Debug, Default)]
struct Column {
    k_panels: Vec<f32>,
    v_panels: Vec<f32>,
    /// Keys by piece.
    k: Vec<Room>,
    between: Between,
    q: Room,
    gradient: Room,
    /// The partial result of a block of queries and a piece of keys.
    dk: Vec<f32>,
    dv: Vec<f32>,
    /// The partial result of two blocks.
    dq: Vec<f32>,
}

impl Column {
    /// Copies a block of keys of a KV head.
    fn enter<M: Machine>(
        &mut self,
        machine: M,
        inputs: &Inputs<'_>,
        head: usize,
        pieces: Range<usize>,
    ) {
        let (dim, width) = (inputs.dims.queries.dim, inputs.dims.width());
        let most = |blocks: &Blocks| blocks.rows.iter().map(Range::len).max().unwrap_or(0);
        let rows = most(&inputs.queries).next_multiple_of(ROWS);
        // A product's rows come in dozens, counted from the first visible column.
        let columns = most(&inputs.columns).next_multiple_of(PANEL) + ROWS;
        let all = inputs.columns.padded(pieces.end) - inputs.columns.padded(pieces.start);
        for panels in [&mut self.k_panels, &mut self.v_panels] {
            panels.resize(all * units::<M>(dim), 0.0);
        }
        self.q.resize::<M>(rows, width);
        self.gradient.resize::<M>(rows, width);
        self.between.resize::<M>(rows);
        self.dk.resize(columns * width, 0.0);
        self.dv.resize(columns * width, 0.0);
        self.k.resize_with(pieces.len().max(self.k.len()), Room::default);
        for (room, piece) in self.k.iter_mut().zip(pieces.clone()) {
            let columns = inputs.columns(head, piece);
            let padded = columns.len().next_multiple_of(PANEL);
            room.resize::<M>(padded, width);
            let from = padded_from(&inputs.columns, &pieces, piece) * units::<M>(dim);
            for (source, to) in [(inputs.v, &mut self.v_panels), (inputs.k, &mut self.k_panels)] {
                source.copy(machine, columns.clone(), dim, &mut room.natural);
                let to = &mut to[from..from + padded * units::<M>(dim)];
                machine.call(Panels { from: &room.natural, to, step: width, width: dim });
            }
            room.split(machine, width, width);
        }
    }

    /// Computes a pair of blocks: adds the gradients of keys and values to their sums, and keeps those of queries.
    fn meet<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        pair: &Pair,
        [dk, dv]: [&mut [u32]; 2],
    ) {
        let inputs = &context.inputs;
        let (dim, width) = (inputs.dims.queries.dim, inputs.dims.width());
        let (rows, columns) = (&inputs.queries.rows, &inputs.columns.rows);
        let height = rows[pair.rows.end - 1].end - rows[pair.rows.start].start + ROWS;
        self.dq.clear();
        self.dq.resize(height * width, 0.0);
        for column in pair.columns.clone() {
            self.dk.fill(0.0);
            self.dv.fill(0.0);
            for block in pair.rows.clone() {
                let place = Place { head: pair.head, block };
                if let Some(piece) = inputs.piece(place, column) {
                    self.multiply(machine, context, pair, place, column, &piece);
                }
            }
            let first = columns[column].start - columns[pair.columns.start].start;
            let within = first * length(dim)..(first + columns[column].len()) * length(dim);
            for (to, from, factor) in [(&mut *dk, &self.dk, context.scale), (dv, &self.dv, 1.0)] {
                machine.call(AddRows {
                    sums: &mut to[within.clone()],
                    numbers: from,
                    step: width,
                    dim,
                    factor,
                    shifts: &[],
                });
            }
        }
    }

    /// Adds the partial result of two pieces to that of their blocks.
    fn multiply<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        pair: &Pair,
        place: Place,
        column: usize,
        piece: &Piece,
    ) {
        let inputs = &context.inputs;
        let (dim, width, columns) = (inputs.dims.queries.dim, inputs.dims.width(), &inputs.columns);
        let first = piece.columns.start - columns.rows[column].start;
        let range = inputs.rows(place);
        let q = self.q.take(machine, inputs.q, range.clone(), dim);
        let gradient = self.gradient.take(machine, context.gradient, range.clone(), dim);
        let spans = inputs.spans(place);
        let extents: Vec<Extent> = piece.extents(spans).collect();
        let [shift, delta] = context.statistics.map(|all| &all[range.clone()]);
        let (exponent, drop) = (context.exponent, inputs.drop(place, piece));
        let scene = Scene { dim, piece, spans, exponent, shift, delta, drop };
        let from = padded_from(columns, &pair.columns, column) + first;
        let panels = [&self.k_panels, &self.v_panels].map(|all| &all[from * units::<M>(dim)..]);
        let factors = ([q, gradient], panels);
        let [p, ds] = self.between.differentiate(machine, &scene, &extents, factors);
        for (to, a, b) in [(&mut self.dv, p, gradient), (&mut self.dk, ds, q)] {
            let to = &mut to[first * width..];
            for extent in piece.transposed(&extents) {
                let product = down_columns::<M>(&mut *to, a, b, &extent, range.len(), width);
                machine.call(Product { onto: Output::Accumulate, ..product });
            }
        }
        let k = &self.k[column - pair.columns.start].factor::<M>().interleaved;
        let k = &k[first / M::UNIT * width..];
        let rows = &inputs.queries.rows;
        let dq = &mut self.dq[(rows[place.block].start - rows[pair.rows.start].start) * width..];
        for extent in extents.iter().filter(|extent| !extent.columns.is_empty()) {
            let product = along_rows::<M>(&mut *dq, ds, k, extent, width);
            machine.call(Product { onto: Output::Accumulate, ..product });
        }
    }

    /// Adds the partial gradients of queries of a pair of blocks to their sums.
    fn add_queries<M: Machine>(&self, machine: M, context: &Context<'_>, dq: &mut [u32]) {
        let (dim, step) = (context.inputs.dims.queries.dim, context.inputs.dims.width());
        machine.call(AddRows {
            sums: dq,
            numbers: &self.dq,
            step,
            dim,
            factor: context.scale,
            shifts: &[],
        });
    }
}
