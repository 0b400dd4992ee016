//! Bytes of memory and of gradient sums, from shapes alone.
//!
//! What a rank holds at its fullest, by class. Inside a process a block that is lent is its owner's, and what is given away
//! stays where it was made; from another process it arrives in a buffer of the receiver's. With n rows of a micro-batch (S of
//! a sequence), h = `hidden_size`, a and k the widths of all query and all key/value heads of D,
//! f = `intermediate_size`, V the vocabulary, L layers, e bytes of an element; of tensor-parallel ranks a, k, f and V are what one has:
//!
//! ```text
//! weights    e per element, once for the ranks of a process; f32 masters of bf16, of what is trained: of each of those ranks a slice;
//!            where processes hold shares, of each rank of all a slice of both, and a stage's whole (`cost/sums.rs`)
//! gradients  f32, of what is trained: of some stages whole, of the others a slice (`cost/sums.rs`)
//! optimizer  two f32 per element that is trained: of each rank of a process a slice; offloaded, of a few parameters
//! key_value  f32 2 k, of as many rows as the proof finds alive of what one rank has made; what the
//!            wire narrows of the own queries (2 a) and keys and values (2 k); what came from other processes, as it travels
//! workspace  n heads (D + 2) f32 of running state, 2 n k f32 of a tile's results, 32 S of who sees
//!            whom, one worker's scratch; f32 of others' queries' gradients, as many as the proof finds
//! data       ids and targets of the own rows and positions, and what is read at a time
//! ```
//!
//! Activations are what layers keep, and the most beside it at one of four moments of backward ([`Share::activations`]), with
//! what the moment's products pack into (`cost/packing.rs`). Workers' buffers are of one worker: [`Plan::with_cores`] adds more.

mod counts;
mod data;
mod loss;
mod offload;
mod packing;
mod sums;
mod workspace;

use annulus_architecture::Dtype;
use annulus_experiment::{Recompute, Settled};
use annulus_machine::blocks::{ATTENTION_COLUMNS, ATTENTION_ROWS, PANEL, SUMMED_ROWS};
use annulus_memory::{ByClass, Class};
use annulus_sequence::{Alive, Computed, Part, Pass, Schedules, Taken, order_free_row};
pub use offload::{OFFLOAD_CHUNK, OFFLOADS_IN_FLIGHT};
pub use sums::SUMS_IN_FLIGHT;

use crate::Plan;
use crate::processes::Kind;

/// Bytes of an f32.
pub(crate) const F32: u64 = 4;
/// A row of a tile that knows which columns it sees, and a column its rows.
const VISIBILITY: u64 = 2 * 16;

/// One rank's share of the work.
pub(crate) struct Share<'a> {
    plan: &'a Plan,
    memory: Settled,
    /// Workers of the rank.
    workers: usize,
    /// Rows of a micro-batch.
    rows: u64,
    /// The same of the rank that has most.
    most: u64,
    /// Bytes of an element of weights and activations.
    element: u64,
    /// Bytes of an element that operators make of a narrower one to compute with; 0: as it lies.
    widened: u64,
    /// The same, before it is narrowed again: what its narrow form takes meanwhile.
    narrowed: u64,
    /// The most that it computes in a hop, forward and backward.
    computed: [Computed; 2],
    /// Buffers that it asks for, forward and backward, in rows of heads.
    taken: [Taken; 2],
    /// Ranks of other processes.
    elsewhere: u64,
    /// Ranks of its process, which share the state.
    here: u64,
    /// What they share is counted to it.
    is_first: bool,
    /// It writes checkpoints where no rank has a share alone.
    is_writer: bool,
    /// Scores that are kept, of one sequence.
    scores: u64,
}

impl Share<'_> {
    /// The share of a rank of a kind while the layers of a group run; so many workers compute its products, and one its
    /// attention.
    pub(crate) fn new<'a>(
        plan: &'a Plan,
        memory: Settled,
        (group, passes): (usize, &Schedules),
        (kind, workers): (&Kind, usize),
    ) -> Share<'a> {
        let place = kind.place;
        let positions = &passes.of(Pass::Forward).positions;
        let rows = |tokens: usize| (plan.micro_batch * tokens) as u64;
        let (most, rows) = (rows(passes.longest()), rows(positions[place].tokens()));
        let dtype = plan.experiment.model.dtype;
        let element = dtype.bytes() as u64;
        let (widened, narrowed) = match dtype {
            Dtype::F32 => (0, 0),
            Dtype::Bf16 => (F32, element),
        };
        let computed = passes.proofs().map(|proof| proof.computed[place]);
        let scores = passes.proof(Pass::Forward).alive[place].scores as u64;
        Share {
            plan,
            memory,
            workers,
            rows,
            most,
            element,
            widened,
            narrowed,
            computed,
            taken: kind.taken[group],
            elsewhere: kind.elsewhere as u64,
            here: kind.here as u64,
            is_first: kind.is_first,
            is_writer: kind.is_writer,
            scores,
        }
    }

    /// The peak of the rank.
    pub(crate) fn peak(&self) -> ByClass {
        let masters = match self.plan.experiment.model.dtype {
            Dtype::F32 => 0,
            Dtype::Bf16 => F32,
        };
        ByClass::new(|class| match class {
            Class::Weights => self.weights() + self.sliced() * masters + self.copied_weights(),
            Class::Gradients => self.gradients()[1],
            Class::Optimizer => self.moments() + self.copied_optimizer(masters),
            Class::Activations => self.activations(),
            Class::KeyValue => self.key_value(),
            Class::Workspace => self.workspace().max(self.scored()),
            Class::Data => self.data(),
        })
    }

    /// The most of all classes at once, whose peaks are `peak`: outside of attention, where nothing
    /// is in flight, or while it runs backward, or forward with its scores; in the last layer, where
    /// there are no gradients yet but those of earlier micro-batches, or in the first, where nothing
    /// else is kept any more. A tile's results are in flight once they are made.
    pub(crate) fn together(&self, peak: &ByClass) -> u64 {
        let Widths { h, a, k, .. } = self.widths();
        let elements = 2 * h + 2 * a + 2 * k + self.before_norms();
        let computing = product(&[self.rows, self.element * elements]);
        let results = product(&[self.most, 2 * k, F32]);
        let attending = |workspace: u64| {
            let all = [self.resident(), computing, peak[Class::KeyValue], workspace];
            all.into_iter().fold(0, u64::saturating_add)
        };
        let scoring = attending(self.scored());
        let attending = attending(self.workspace().saturating_sub(results));
        let last = peak[Class::Activations].max(attending).max(scoring);
        let earlier = F32 * self.sliced();
        let earlier = if self.plan.micro_batches > 1 { earlier } else { 0 };
        let in_layer = self.resident().saturating_add(self.in_layer()).max(attending);
        let first = in_layer.saturating_sub(self.others()).saturating_add(self.gradients()[0]);
        let most = last.saturating_add(earlier).max(first).max(peak[Class::Gradients]);
        let always =
            [peak[Class::Weights], peak[Class::Optimizer], peak[Class::Data], self.scratch()];
        always.into_iter().fold(most, u64::saturating_add)
    }

    /// What the ranks of a process share: the first has it.
    fn shared(&self, bytes: u64) -> u64 {
        if self.is_first { bytes } else { 0 }
    }

    /// Gradients of keys and values, own values as they travel, and what came from other processes.
    fn key_value(&self) -> u64 {
        let (batch, dim) = (self.plan.micro_batch as u64, self.plan.own.head_dim as u64);
        let Widths { a, k, .. } = self.widths();
        let own = 2 * (a * self.copied(Part::Query) + k * self.copied(Part::KeyValue));
        let [forward, backward] = self.taken;
        let made = product(&[2, batch, backward.made.gradients as u64, self.sums(dim)]);
        let forward = self.in_rows(Pass::Forward, forward.received);
        let backward = self.in_rows(Pass::Backward, backward.received).saturating_add(made);
        forward.max(backward).saturating_add(product(&[self.rows, own]))
    }

    /// Bytes of an element of own values that are copied for the way: 0 where they travel as they are.
    fn copied(&self, part: Part) -> u64 {
        let wire = self.plan.block().wire.of(part) as u64;
        if wire < self.element { wire } else { 0 }
    }

    /// What a pass holds beside the own queries, keys, values and outputs, where what arrives takes
    /// memory of its own. `alive` is in rows of heads.
    pub(crate) fn received(&self, pass: Pass, alive: Alive) -> u64 {
        let own = self.positions() as usize * self.plan.own.num_attention_heads;
        let [outputs, query_gradients] =
            [alive.outputs, alive.query_gradients].map(|rows| rows.saturating_sub(own));
        self.in_rows(pass, Alive { outputs, query_gradients, ..alive })
    }

    /// Bytes of so many rows of heads, as they travel.
    fn in_rows(&self, pass: Pass, alive: Alive) -> u64 {
        let dim = self.plan.own.head_dim as u64;
        let wire = self.plan.block().wire.map(|_, bytes| bytes as u64);
        let query = match pass {
            Pass::Forward => dim * wire.query,
            Pass::Backward => 2 * dim * wire.query + 2 * F32,
        };
        let parts = [
            (alive.queries as u64, query),
            (alive.key_values as u64, 2 * dim * wire.key_value),
            (alive.halves as u64, dim * wire.key_value),
            (alive.outputs as u64, dim * wire.output + F32),
            (alive.query_gradients as u64, self.sums(dim)),
            (alive.gradients as u64, 2 * self.sums(dim)),
        ];
        let rows = parts.map(|(rows, bytes)| rows.saturating_mul(bytes));
        let all = rows.into_iter().fold(0, u64::saturating_add);
        all.saturating_mul(self.plan.micro_batch as u64)
    }

    /// Bytes of a row of so many sums of gradients.
    fn sums(&self, width: u64) -> u64 {
        match self.plan.experiment.block() {
            None => F32 * width,
            Some(_) => F32 * order_free_row(width as usize) as u64,
        }
    }

    /// Of each worker, backward: operands of a block as panels, rows and columns.
    pub(crate) fn scratch(&self) -> u64 {
        let (rows, columns) = (ATTENTION_ROWS as u64, ATTENTION_COLUMNS as u64);
        let dim = self.plan.own.head_dim as u64;
        let width = dim.next_multiple_of(PANEL as u64);
        let (panels, sums) = (2 * columns * dim, 2 * columns * width + rows * width);
        let factors = columns * width + 2 * rows * width + 2 * rows * columns;
        match self.plan.experiment.model.dtype {
            Dtype::F32 => F32 * (panels + sums + factors),
            // Pairs: panels of half the length, factors along the rows and along the columns.
            Dtype::Bf16 => F32 * (panels / 2 + sums + factors + factors / 2),
        }
    }

    /// Own positions of one sequence.
    fn positions(&self) -> u64 {
        self.rows / self.plan.micro_batch as u64
    }

    /// What all layers keep, and the fullest moment of the loss or of the last layer's backward.
    fn activations(&self) -> u64 {
        let layer = product(&[self.rows, self.kept().1 + self.lent()]);
        let most = layer.saturating_add(self.in_loss()).max(self.in_layer());
        self.resident().saturating_add(most)
    }

    /// The fullest moment of a layer's backward, with what it kept.
    fn in_layer(&self) -> u64 {
        let (attention, layer) = self.kept();
        let input = self.element * self.widths().r;
        let moments = [
            product(&[self.rows, layer + self.lent()]).saturating_add(self.in_feed_forward()),
            product(&[self.rows, attention + self.lent()]).saturating_add(self.in_attention()),
            product(&[self.rows, input]).saturating_add(self.after_attention()),
        ];
        let most = moments.into_iter().max().unwrap_or_default();
        most.saturating_add(self.between_parts())
    }

    /// Own rows that tensor-parallel ranks make others' rows of, or of sums, while all are there.
    fn between_parts(&self) -> u64 {
        if self.plan.experiment.mesh.tensor == 1 {
            return 0;
        }
        product(&[self.rows, 2 * self.element * self.widths().r])
    }

    /// Per row, what the first half of a layer keeps, and what all of it does.
    fn kept(&self) -> (u64, u64) {
        let Widths { r, a, k, f, .. } = self.widths();
        let e = self.element;
        let statistics = F32 * self.plan.own.num_attention_heads as u64;
        let everything = self.memory.recompute == Recompute::None;
        let (qkv, pieces) =
            if everything { (a + 2 * k + self.before_norms(), 2 * f) } else { (0, 0) };
        let attention = e * (r + a + qkv) + statistics;
        (attention, attention + e * (r + pieces))
    }

    /// Elements of a row of queries and keys that lie there as they were projected, too, for the way
    /// back through their norms.
    fn before_norms(&self) -> u64 {
        let Widths { a, k, .. } = self.widths();
        if self.plan.own.has_query_key_norm() { a + k } else { 0 }
    }

    /// What layers but the last hold, and the rotary angles.
    fn resident(&self) -> u64 {
        let rotary = product(&[self.positions(), self.plan.own.head_dim as u64, F32]);
        self.others().saturating_add(rotary)
    }

    /// Own keys and values that others may still read, where a layer would not keep them.
    fn lent(&self) -> u64 {
        let apart = self.plan.experiment.mesh.sequence > 1;
        let kept = self.memory.recompute == Recompute::None || self.copied(Part::KeyValue) > 0;
        let lent = apart && !kept;
        if lent { 2 * self.element * self.widths().k } else { 0 }
    }

    /// The gradient of the output. Then of all rows, or of those of a piece while gradients of the
    /// others wait: the norm; gate and up, unless they were kept; the gradient of their product;
    /// and in and out of it three as they are computed with. Or, while products with the weights and for their gradients are
    /// packed, what they take and give.
    fn in_feed_forward(&self) -> u64 {
        let Widths { h, f, .. } = self.widths();
        let e = self.element;
        let again = if self.memory.recompute == Recompute::None { 0 } else { 2 };
        let computed = 3 * (self.widened + F32) + self.narrowed;
        let turning = e * h + e * f * (again + 1) + f * computed;
        let projecting = e * h + e * f * again + self.widened * h + (F32 + self.narrowed) * f;
        let reaping = e * (h + 3 * f) + self.widened * (h + f);
        let rows = self.rows.min(self.memory.mlp_chunk as u64);
        let piece = [
            product(&[rows, turning]),
            product(&[rows, projecting])
                .saturating_add(self.packing(&[[rows, f, h], [rows, h, f]])),
            product(&[rows, reaping]).saturating_add(self.packing(&[[f, h, rows], [h, f, rows]])),
        ];
        let piece = piece.into_iter().max().unwrap_or_default();
        let waiting = if rows < self.rows { product(&[self.rows, e * h]) } else { 0 };
        let working = waiting.saturating_add(piece).max(2 * waiting);
        product(&[self.rows, e * h]).saturating_add(working)
    }

    /// Beside what is kept: the gradient of the half's output, and that of attention's by
    /// token and by head, or attention's output by token, while the projection's gradient is packed; or
    /// attention's gradient by head alone, while queries, keys and values are made
    /// again: of the norm, then by token and queries also by head.
    fn in_attention(&self) -> u64 {
        let Widths { h, a, k, .. } = self.widths();
        let (e, wide) = (self.element, self.widened);
        let gradients = e * (h + 2 * a) + wide * a;
        let projected = e * (h + a + 2 * k) + (wide - self.narrowed) * (h + a + 2 * k);
        let projected = projected + self.narrowed * (h + a);
        let turned = e * (2 * a + 2 * k + self.before_norms()) + wide * a;
        let reaped = product(&[self.rows, e * (h + a) + wide * (h + a)])
            .saturating_add(self.packing(&[[self.rows, a, h], [h, a, self.rows]]));
        let gradients = product(&[self.rows, gradients]).max(reaped);
        match self.memory.recompute {
            Recompute::None => gradients,
            Recompute::Layer | Recompute::Auto => {
                let packed = self.packing(&[[self.rows, a, h], [self.rows, k, h]]);
                let [projected, turned] =
                    [projected, turned].map(|bytes| product(&[self.rows, e * (h + a) + bytes]));
                gradients.max(projected.saturating_add(packed)).max(turned)
            }
        }
    }

    /// Beside the half's input: the gradient of its output; those of queries, keys and
    /// values by head and by token, or by token with the norm and its gradient, while those are packed, and the norm's
    /// three inputs as they are computed with, and what comes out.
    fn after_attention(&self) -> u64 {
        let Widths { h, a, k, .. } = self.widths();
        let (e, wide) = (self.element, self.widened);
        let turned = e * (h + 2 * (a + 2 * k));
        let summed = e * (2 * h + a + 2 * k) + wide * (h + a + 2 * k);
        let normed = e * (3 * h + a + 2 * k) + h * (3 * wide + F32 + self.narrowed);
        let packed = self.packing(&[
            [self.rows, h, a],
            [self.rows, h, k],
            [a, h, self.rows],
            [k, h, self.rows],
        ]);
        let always = e * self.before_norms() + F32 * h / SUMMED_ROWS as u64;
        let [turned, summed, normed] =
            [turned, summed, normed].map(|bytes| product(&[self.rows, bytes + always]));
        turned.max(summed.saturating_add(packed)).max(normed)
    }

    fn widths(&self) -> Widths {
        let shape = &self.plan.own;
        Widths {
            h: shape.hidden_size as u64,
            r: (shape.hidden_size as u64).div_ceil(self.plan.experiment.mesh.tensor as u64),
            a: shape.query_width(),
            k: shape.key_value_width(),
            f: shape.intermediate_size as u64,
        }
    }
}

/// Elements of a row.
struct Widths {
    h: u64,
    /// Of a row between layers: of tensor-parallel ranks each has some of the rows.
    r: u64,
    a: u64,
    k: u64,
    f: u64,
}

/// A product that stops at the largest number instead of wrapping.
fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}
