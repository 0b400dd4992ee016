//! The backward work of one job: one block of key columns.

use std::ops::Range;

use annulus_sequence::Spans;
use parking_lot::Mutex;

use super::drop::Drop;
use super::inputs::{Inputs, Place, Source};
use super::pack::{Interleaved, Natural, Panels, units};
use super::pieces::{COLUMNS, Extent, Piece, ROWS};
use super::scores::{AddRows, Differentiate, STEP, clear, hide};
use super::turns::{Taker, Turns};
use crate::vector::product::{self, Left, Output, Product, Right};
use crate::vector::{Machine, PANEL};

/// The state that the jobs of a tile share.
pub(super) struct Context<'a> {
    pub(super) inputs: Inputs<'a>,
    /// The gradient of the output.
    pub(super) gradient: Source<'a>,
    /// The factor of the gradients of keys and queries.
    pub(super) scale: f32,
    /// The factor of scores: `scale log2 e`.
    pub(super) exponent: f32,
    pub(super) shift: &'a [f32],
    pub(super) delta: &'a [f32],
    /// The queries' gradients by head and block of rows; `turns` says which job adds next.
    pub(super) dq: Vec<Mutex<&'a mut [f32]>>,
    pub(super) turns: Turns,
}

/// Rows as left factor along a row, and as either factor along a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor<'a> {
    pub(super) natural: &'a [f32],
    pub(super) interleaved: &'a [f32],
}

/// A buffer for a factor of rows that are copied or computed.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) natural: Vec<f32>,
    /// Used only where a unit has two values.
    interleaved: Vec<f32>,
}

/// A block of key columns and its gradients.
#[derive(Debug, Default)]
struct Block {
    k_panels: Vec<f32>,
    v_panels: Vec<f32>,
    k: Room,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

/// Intermediate results between the products of a piece.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// Scores, then probabilities.
    p: Room,
    /// Gradients of probabilities, then of scores.
    ds: Room,
    shift: Vec<f32>,
    delta: Vec<f32>,
}

/// What the gradients of a piece's scores depend on, besides its factors.
pub(super) struct Scene<'a> {
    pub(super) dim: usize,
    pub(super) piece: &'a Piece,
    /// The visible columns of each query row.
    pub(super) spans: &'a [Spans],
    /// The factor of scores: `scale log2 e`.
    pub(super) exponent: f32,
    /// The shift of each query row.
    pub(super) shift: &'a [f32],
    pub(super) delta: &'a [f32],
    pub(super) drop: Option<Drop>,
}

/// A worker's copies of one block of key columns and of the current query rows, in whole panels.
#[derive(Debug, Default)]
pub(super) struct Column {
    block: Block,
    between: Between,
    q: Room,
    gradient: Room,
    dq: Vec<f32>,
}

impl Room {
    /// Resizes the buffer for `rows` of `width`.
    pub(super) fn resize<M: Machine>(&mut self, rows: usize, width: usize) {
        self.natural.resize(rows * width, 0.0);
        self.interleaved.resize(if M::UNIT == 1 { 0 } else { units::<M>(rows) * width }, 0.0);
    }

    /// Rows as both factors: in place if they can be read there, else copied.
    pub(super) fn take<'a, M: Machine>(
        &'a mut self,
        machine: M,
        from: Source<'a>,
        rows: Range<usize>,
        dim: usize,
    ) -> Factor<'a> {
        let width = dim.next_multiple_of(PANEL);
        match from.rows_in_place(dim) {
            Some(all) if M::UNIT == 1 && rows.len().is_multiple_of(product::ROWS) => {
                let rows = &all[rows.start * dim..rows.end * dim];
                Factor { natural: rows, interleaved: rows }
            }
            _ => {
                from.copy(machine, rows, dim, &mut self.natural);
                self.split(machine, width, width)
            }
        }
    }

    /// Makes both factors from natural rows with `width` values.
    pub(super) fn split<M: Machine>(
        &mut self,
        machine: M,
        step: usize,
        width: usize,
    ) -> Factor<'_> {
        if M::UNIT > 1 {
            machine.call(Interleaved { from: &self.natural, to: &mut self.interleaved, step });
            machine.call(Natural { rows: &mut self.natural, step, width });
        }
        self.factor::<M>()
    }

    pub(super) fn factor<M: Machine>(&self) -> Factor<'_> {
        let natural = &self.natural;
        Factor { natural, interleaved: if M::UNIT == 1 { natural } else { &self.interleaved } }
    }
}

impl Column {
    /// Copies a block of key columns of a KV head.
    pub(super) fn enter<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        head: usize,
        column: usize,
    ) {
        let inputs = &context.inputs;
        let (dim, width) = (inputs.dims.queries.dim, inputs.dims.width());
        let Block { k_panels, v_panels, k, dk, dv } = &mut self.block;
        for panels in [&mut *k_panels, v_panels] {
            panels.resize(COLUMNS * units::<M>(dim), 0.0);
        }
        for gradient in [dk, dv] {
            gradient.clear();
            gradient.resize(COLUMNS * width, 0.0);
        }
        k.resize::<M>(COLUMNS, width);
        self.q.resize::<M>(ROWS, width);
        self.gradient.resize::<M>(ROWS, width);
        self.between.resize::<M>(ROWS);
        self.dq.resize(ROWS * width, 0.0);
        let columns = inputs.columns(head, column);
        for (source, to) in [(inputs.v, v_panels), (inputs.k, k_panels)] {
            source.copy(machine, columns.clone(), dim, &mut k.natural);
            machine.call(Panels { from: &k.natural, to, step: width, width: dim });
        }
        k.split(machine, width, width);
    }

    /// Adds the gradients of what a block of query rows sees of the block of columns: `dv += pT g`, `dk += dsT q`, and, in turn, `dq +=
    /// scale ds k`.
    pub(super) fn add<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        head: usize,
        block: usize,
        column: usize,
        taker: &Taker<'_>,
    ) {
        let inputs = &context.inputs;
        let index = head * inputs.row_blocks() + block;
        let turn = column - inputs.reach(head, block).start;
        let Some(piece) = inputs.piece(head, block, column) else {
            return taker.take(index, turn, || ());
        };
        self.gradients(machine, context, Place { head, block, piece: &piece }, column);
        let (dim, step) = (inputs.dims.queries.dim, inputs.dims.width());
        taker.take(index, turn, || {
            let to: &mut [f32] = &mut context.dq[index].lock();
            machine.call(AddRows { to, from: &self.dq, scale: context.scale, dim, step });
        });
    }

    /// Adds the gradients of a piece's keys and values; keeps those of its queries.
    fn gradients<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        place: Place<'_>,
        column: usize,
    ) {
        let (inputs, piece) = (&context.inputs, place.piece);
        let (dim, width) = (inputs.dims.queries.dim, inputs.dims.width());
        let first = piece.columns.start - column * COLUMNS;
        let range = inputs.rows(place.head, place.block);
        let q = self.q.take(machine, inputs.q, range.clone(), dim);
        let gradient = self.gradient.take(machine, context.gradient, range.clone(), dim);
        let Block { k_panels, v_panels, k, dk, dv } = &mut self.block;
        let panels = [&*k_panels, v_panels].map(|all| &all[first * units::<M>(dim)..]);
        let spans = inputs.spans(place.head, place.block);
        let extents: Vec<_> = piece.extents(spans).collect();
        let (rows, exponent, drop) = (range.len(), context.exponent, inputs.drop(place));
        let [shift, delta] = [context.shift, context.delta].map(|all| &all[range.clone()]);
        let scene = Scene { dim, piece, spans, exponent, shift, delta, drop };
        let factors = ([q, gradient], panels);
        let [p, ds] = self.between.differentiate(machine, &scene, &extents, factors);
        let by_columns = |c: &mut [f32], a: Factor<'_>, b: Factor<'_>| {
            for extent in piece.transposed(&extents) {
                let product = down_columns::<M>(c, a, b, &extent, rows, width);
                machine.call(Product { onto: Output::Accumulate, ..product });
            }
        };
        by_columns(&mut dv[first * width..], p, gradient);
        by_columns(&mut dk[first * width..], ds, q);
        let k = &k.factor::<M>().interleaved[first / M::UNIT * width..];
        for extent in &extents {
            machine.call(along_rows::<M>(&mut self.dq, ds, k, extent, width));
        }
    }

    /// Adds the collected gradients to those of the block's keys and values.
    pub(super) fn leave<M: Machine>(
        &self,
        machine: M,
        context: &Context<'_>,
        to: [&Mutex<&mut [f32]>; 2],
    ) {
        let (dim, width) = (context.inputs.dims.queries.dim, context.inputs.dims.width());
        let from = [(&self.block.dk, context.scale), (&self.block.dv, 1.0)];
        for (to, (from, scale)) in to.into_iter().zip(from) {
            machine.call(AddRows { to: &mut to.lock(), from, scale, dim, step: width });
        }
    }
}

/// Computes `c = a bT` for an extent, with `b` in panels.
fn of_extent<'a>(
    c: &'a mut [f32],
    a: Factor<'a>,
    b: &'a [f32],
    Extent { rows, columns }: &Extent,
    [depth, width]: [usize; 2],
) -> Product<'a> {
    Product {
        a: Left::new(&a.natural[rows.start * width..], width, 1),
        b: Right { units: &b[columns.start * depth..], panel: depth * PANEL, depth: PANEL },
        c: &mut c[rows.start * STEP + columns.start..],
        step: STEP,
        rows: rows.len(),
        panels: columns.len() / PANEL,
        depth,
        onto: Output::Overwrite,
    }
}

/// Computes `c = aT b` for the columns of an extent: rows of `c`, `width` apart, each a sum over the extent's existing rows.
pub(super) fn down_columns<'a, M: Machine>(
    c: &'a mut [f32],
    a: Factor<'a>,
    b: Factor<'a>,
    Extent { rows, columns }: &Extent,
    exist: usize,
    width: usize,
) -> Product<'a> {
    let start = rows.start / M::UNIT;
    Product {
        a: Left::new(&a.interleaved[start * STEP + columns.start..], 1, STEP),
        b: Right { units: &b.interleaved[start * width..], panel: PANEL, depth: width },
        c: &mut c[columns.start * width..],
        step: width,
        rows: columns.len(),
        panels: width / PANEL,
        depth: units::<M>(rows.end.min(exist) - rows.start),
        onto: Output::Overwrite,
    }
}

/// Computes `c = a b` for the rows of an extent, each a sum over its columns.
pub(super) fn along_rows<'a, M: Machine>(
    c: &'a mut [f32],
    a: Factor<'a>,
    b: &'a [f32],
    Extent { rows, columns }: &Extent,
    width: usize,
) -> Product<'a> {
    let c = &mut c[rows.start * width..rows.end * width];
    if columns.is_empty() {
        c.fill(0.0);
    }
    let start = columns.start / M::UNIT;
    Product {
        a: Left::new(&a.natural[rows.start * STEP + start..], STEP, 1),
        b: Right { units: &b[start * width..], panel: PANEL, depth: width },
        c,
        step: width,
        rows: rows.len(),
        panels: width / PANEL,
        depth: units::<M>(columns.len()),
        onto: Output::Overwrite,
    }
}

/// Copies rows of a block, padded with `rest` up to `rows`.
#[inline(always)]
fn padded(to: &mut Vec<f32>, from: &[f32], rows: usize, rest: f32) {
    to.clear();
    to.extend_from_slice(from);
    to.resize(rows, rest);
}

impl Between {
    /// Turns the scores of an extent into probabilities, and the products of gradients with values into gradients of scores.
    #[inline(always)]
    fn of_extent<M: Machine>(&mut self, machine: M, scale: f32, Extent { rows, columns }: &Extent) {
        let from = rows.start * STEP + columns.start;
        machine.call(Differentiate {
            scores: &mut self.p.natural[from..],
            gradients: &mut self.ds.natural[from..],
            columns: columns.len(),
            scale,
            shift: &self.shift[rows.clone()],
            delta: &self.delta[rows.clone()],
        });
    }

    /// Resizes the buffers for this many rows.
    pub(super) fn resize<M: Machine>(&mut self, rows: usize) {
        self.p.resize::<M>(rows, STEP);
        self.ds.resize::<M>(rows, STEP);
    }

    /// Computes the probabilities of a piece and the gradients of its scores, from query rows and output gradients against the panels of
    /// its keys and values.
    pub(super) fn differentiate<M: Machine>(
        &mut self,
        machine: M,
        scene: &Scene<'_>,
        extents: &[Extent],
        ([q, gradient], [k, v]): ([Factor<'_>; 2], [&[f32]; 2]),
    ) -> [Factor<'_>; 2] {
        let columns = &scene.piece.columns;
        let sizes = [units::<M>(scene.dim), scene.dim.next_multiple_of(PANEL)];
        let rows = scene.spans.len().next_multiple_of(product::ROWS);
        let scores = |a: Factor<'_>, panels: &[f32], c: &mut Room| {
            for extent in extents {
                machine.call(of_extent(&mut c.natural, a, panels, extent, sizes));
            }
        };
        scores(q, k, &mut self.p);
        scores(gradient, v, &mut self.ds);
        if scene.piece.is_masked() {
            hide(&mut self.p.natural, scene.spans, columns, &scene.piece.seen);
        }
        padded(&mut self.shift, scene.shift, rows, f32::INFINITY);
        padded(&mut self.delta, scene.delta, rows, 0.0);
        if let Some(drop) = &scene.drop {
            machine.call(drop.of(&mut self.ds.natural));
        }
        for extent in extents {
            self.of_extent(machine, scene.exponent, extent);
        }
        // Gradients of keys are made of columns in multiples of ROWS, which may pass the last: those are 0, not what an earlier piece left.
        let width = columns.len().next_multiple_of(product::ROWS);
        clear(&mut self.p.natural, extents, width);
        clear(&mut self.ds.natural, extents, width);
        if let Some(drop) = &scene.drop {
            machine.call(drop.of(&mut self.p.natural));
        }
        [&mut self.p, &mut self.ds].map(|room| room.split(machine, STEP, columns.len()))
    }
}
