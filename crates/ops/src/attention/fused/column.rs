//! What a worker does backward with one block of key columns.

use std::sync::Mutex;

use super::inputs::{Inputs, Place, Source};
use super::lock;
use super::machine::{Machine, PANEL};
use super::pack::{Interleaved, Natural, Panels, units};
use super::pieces::{COLUMNS, ROWS};
use super::product::{self, Left, Onto, Product, Right};
use super::scores::{AddRows, Differentiate, STEP, hide};
use super::turns::{Taker, Turns};

/// What the jobs of a tile share.
pub(super) struct Context<'a> {
    pub(super) inputs: Inputs<'a>,
    /// The gradient of the output.
    pub(super) gradient: Source<'a>,
    /// What the gradients of keys and queries are multiplied by.
    pub(super) scale: f32,
    /// What scores are multiplied by: `scale log2 e`.
    pub(super) exponent: f32,
    pub(super) shift: &'a [f32],
    pub(super) delta: &'a [f32],
    /// By head and block of query rows; `turns` says who adds next.
    pub(super) dq: Vec<Mutex<&'a mut [f32]>>,
    pub(super) turns: Turns,
}

/// Rows as left factor along a row, and as either factor along a column.
#[derive(Debug, Default)]
struct Factor {
    natural: Vec<f32>,
    /// Only where a unit has two values.
    interleaved: Vec<f32>,
}

/// A worker's copies of one block of key columns and of the query rows it is at, in whole panels.
#[derive(Debug, Default)]
pub(super) struct Column {
    k_panels: Vec<f32>,
    v_panels: Vec<f32>,
    k: Factor,
    dk: Vec<f32>,
    dv: Vec<f32>,
    q: Factor,
    gradient: Factor,
    /// Scores, then probabilities.
    p: Factor,
    /// Gradients of probabilities, then of scores.
    ds: Factor,
    dq: Vec<f32>,
    shift: Vec<f32>,
    delta: Vec<f32>,
}

impl Factor {
    /// Room for `rows` of `width`.
    fn resize<M: Machine>(&mut self, rows: usize, width: usize) {
        self.natural.resize(rows * width, 0.0);
        self.interleaved.resize(if M::UNIT == 1 { 0 } else { units::<M>(rows) * width }, 0.0);
    }

    /// Copies rows in as both factors.
    fn copy<M: Machine>(
        &mut self,
        machine: M,
        from: Source<'_>,
        rows: std::ops::Range<usize>,
        dim: usize,
    ) {
        let width = dim.next_multiple_of(PANEL);
        from.copy(machine, rows, dim, &mut self.natural);
        self.split(machine, width, width);
    }

    /// Makes both factors of the natural rows, of which `width` values count.
    fn split<M: Machine>(&mut self, machine: M, step: usize, width: usize) {
        if M::UNIT > 1 {
            machine.call(Interleaved { from: &self.natural, to: &mut self.interleaved, step });
            machine.call(Natural { rows: &mut self.natural, step, width });
        }
    }

    /// As factor along a column.
    fn along_columns<M: Machine>(&self) -> &[f32] {
        if M::UNIT == 1 { &self.natural } else { &self.interleaved }
    }
}

impl Column {
    /// Takes in a block of key columns of a key/value head.
    pub(super) fn enter<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        (head, column): (usize, usize),
    ) {
        let inputs = &context.inputs;
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        for panels in [&mut self.k_panels, &mut self.v_panels] {
            panels.resize(COLUMNS * units::<M>(dim), 0.0);
        }
        for gradient in [&mut self.dk, &mut self.dv] {
            gradient.clear();
            gradient.resize(COLUMNS * width, 0.0);
        }
        self.k.resize::<M>(COLUMNS, width);
        self.q.resize::<M>(ROWS, width);
        self.gradient.resize::<M>(ROWS, width);
        self.p.resize::<M>(ROWS, STEP);
        self.ds.resize::<M>(ROWS, STEP);
        self.dq.resize(ROWS * width, 0.0);
        let columns = inputs.columns(head, column);
        for (source, to) in [(inputs.v, &mut self.v_panels), (inputs.k, &mut self.k_panels)] {
            source.copy(machine, columns.clone(), dim, &mut self.k.natural);
            machine.call(Panels { from: &self.k.natural, to, step: width, width: dim });
        }
        self.k.split(machine, width, width);
    }

    /// Adds the gradients of what a block of query rows sees of the block of columns: `dv += pT g`, `dk += dsT q`,
    /// `dq += scale ds k`, the last in turn.
    pub(super) fn add<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        (head, block, column): (usize, usize, usize),
        taker: &Taker<'_>,
    ) {
        let inputs = &context.inputs;
        let index = head * inputs.row_blocks() + block;
        let turn = column - inputs.reach(head, block).start;
        let Some(piece) = inputs.piece(head, block, column) else {
            return taker.take(index, turn, || ());
        };
        self.gradients(machine, context, Place { head, block, piece: &piece }, column);
        let (dim, step) = (inputs.sizes.dim, inputs.width());
        taker.take(index, turn, || {
            let to: &mut [f32] = &mut lock(&context.dq[index]);
            machine.call(AddRows { to, from: &self.dq, scale: context.scale, dim, step });
        });
    }

    /// Adds the gradients of a piece's keys and values; leaves those of its queries.
    fn gradients<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        place: Place<'_>,
        column: usize,
    ) {
        let (inputs, piece) = (&context.inputs, place.piece);
        let (dim, width) = (inputs.sizes.dim, inputs.width());
        let (count, first) = (piece.columns.len(), piece.columns.start - column * COLUMNS);
        let range = inputs.rows(place.head, place.block);
        let rows = range.len().next_multiple_of(product::ROWS);
        self.q.copy(machine, inputs.q, range.clone(), dim);
        self.gradient.copy(machine, context.gradient, range.clone(), dim);
        self.differentiate(machine, context, place, (rows, first));
        let by_columns = |c, factor: &Factor, b: &Factor| {
            machine.call(Product {
                a: Left { units: factor.along_columns::<M>(), row: 1, depth: STEP },
                b: Right { units: b.along_columns::<M>(), panel: PANEL, depth: width },
                c,
                step: width,
                rows: count,
                panels: width / PANEL,
                depth: units::<M>(range.len()),
                onto: Onto::Sum,
            });
        };
        by_columns(&mut self.dv[first * width..], &self.p, &self.gradient);
        by_columns(&mut self.dk[first * width..], &self.ds, &self.q);
        machine.call(Product {
            a: Left { units: &self.ds.natural, row: STEP, depth: 1 },
            b: Right {
                units: &self.k.along_columns::<M>()[first / M::UNIT * width..],
                panel: PANEL,
                depth: width,
            },
            c: &mut self.dq,
            step: width,
            rows,
            panels: width / PANEL,
            depth: units::<M>(count),
            onto: Onto::Nothing,
        });
    }

    /// The probabilities of a piece and the gradients of its scores.
    fn differentiate<M: Machine>(
        &mut self,
        machine: M,
        context: &Context<'_>,
        place: Place<'_>,
        (rows, first): (usize, usize),
    ) {
        let inputs = &context.inputs;
        let (width, columns) = (inputs.width(), &place.piece.columns);
        let depth = units::<M>(inputs.sizes.dim);
        let scores = |a: &Factor, panels: &[f32], c: &mut Factor| {
            machine.call(Product {
                a: Left { units: &a.natural, row: width, depth: 1 },
                b: Right { units: &panels[first * depth..], panel: depth * PANEL, depth: PANEL },
                c: &mut c.natural,
                step: STEP,
                rows,
                panels: columns.len() / PANEL,
                depth,
                onto: Onto::Nothing,
            });
        };
        scores(&self.q, &self.k_panels, &mut self.p);
        scores(&self.gradient, &self.v_panels, &mut self.ds);
        if place.piece.masked {
            hide(&mut self.p.natural, inputs.spans(place.head, place.block), columns);
        }
        let range = inputs.rows(place.head, place.block);
        for (to, from, rest) in
            [(&mut self.shift, context.shift, f32::INFINITY), (&mut self.delta, context.delta, 0.0)]
        {
            to.clear();
            to.extend_from_slice(&from[range.clone()]);
            to.resize(rows, rest);
        }
        machine.call(Differentiate {
            scores: &mut self.p.natural,
            gradients: &mut self.ds.natural,
            columns: columns.len(),
            scale: context.exponent,
            shift: &self.shift,
            delta: &self.delta,
        });
        self.p.split(machine, STEP, columns.len());
        self.ds.split(machine, STEP, columns.len());
    }

    /// Adds what was gathered to the gradients of the block's keys and values.
    pub(super) fn leave<M: Machine>(
        &self,
        machine: M,
        context: &Context<'_>,
        to: [&Mutex<&mut [f32]>; 2],
    ) {
        let (dim, width) = (context.inputs.sizes.dim, context.inputs.width());
        let from = [(&self.dk, context.scale), (&self.dv, 1.0)];
        for (to, (from, scale)) in to.into_iter().zip(from) {
            machine.call(AddRows { to: &mut lock(to), from, scale, dim, step: width });
        }
    }
}
