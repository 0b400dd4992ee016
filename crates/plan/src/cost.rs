//! Bytes of memory and of gradient sums, from shapes alone.
//!
//! What a rank holds at its peak, by class. Within a process a lent block counts for its owner, and a block that is given away counts where
//! it was made; a block from another process arrives in a buffer of the receiver's. With n rows of a micro-batch (S of a sequence), h =
//! `hidden_size`, a and k the widths of all query and all key/value heads of D, f = `intermediate_size`, V the vocabulary, L layers, e
//! bytes of an element; with tensor parallelism a, k, f and V are those of one rank:
//!
//! ```text
//! weights    e per element, once for the ranks of a process; f32 masters of bf16, of what is trained: of each of those ranks a slice;
//!            where both are sharded, a slice of both for each of all ranks, and one whole stage (`cost/sums.rs`)
//! gradients  f32, of what is trained: of some stages whole, of the others a slice (`cost/sums.rs`)
//! optimizer  two f32 per element that is trained: of each rank of a process a slice; offloaded, of a few parameters
//! key_value  f32 2 k, of as many rows as the proof finds alive of what one rank has made; what the
//!            wire narrows of the own queries (2 a) and keys and values (2 k); what came from other processes, as it travels
//! workspace  n heads (D + 2) f32 of running state, 2 n k f32 of a tile's results, 32 S of who sees
//!            whom, one worker's scratch; f32 of others' queries' gradients, as many as the proof finds
//! data       ids and targets of the own rows and positions, and what is read at a time
//! ```
//!
//! Activations are what layers keep, plus the most that is held beside it at one of four moments of backward ([`Share::activations`]), with
//! what that moment's matrix products pack into (`cost/packing.rs`). Workers' buffers are of one worker: [`Plan::with_cores`] adds more.

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
/// Bytes of visibility per row and column of a tile: which columns a row sees, and which rows see a column.
const VISIBILITY: u64 = 2 * 16;

/// One rank's share of the work, from which its peak memory follows.
pub(crate) struct Share<'a> {
    plan: &'a Plan,
    memory: Settled,
    /// Workers that compute the rank's matrix products.
    workers: usize,
    /// Rows of a micro-batch that this rank holds.
    rows: u64,
    /// Rows of a micro-batch on the rank that holds most.
    most: u64,
    /// Bytes of an element of weights and activations.
    element: u64,
    /// Bytes of an element of the f32 copy that operators compute with; 0: they compute with the tensor as it is.
    widened: u64,
    /// Bytes of an element of a result in the model's dtype, held beside its f32 form while it is narrowed; 0 for f32.
    narrowed: u64,
    /// The most that the rank computes in one hop, forward and backward.
    computed: [Computed; 2],
    /// Buffers that the rank allocates for blocks, forward and backward, in rows of heads.
    taken: [Taken; 2],
    /// Ranks of other processes that sum the same gradients.
    elsewhere: u64,
    /// Ranks of this process that sum the same gradients and share the state.
    here: u64,
    /// Whether memory that the ranks of a process share is counted for this rank.
    is_first: bool,
    /// Whether this rank writes the whole checkpoint where the state is not sharded.
    is_writer: bool,
    /// Attention scores of one sequence that are kept (Li et al.'s ring).
    scores: u64,
    /// Running states of a query, and how many of them are of copied rows.
    states: [u64; 2],
}

impl Share<'_> {
    /// The work of a rank of `kind` while the layers of `group` run; `workers` compute its matrix products, and one its attention.
    pub(crate) fn new<'a>(
        plan: &'a Plan,
        memory: Settled,
        group: usize,
        passes: &Schedules,
        kind: &Kind,
        workers: usize,
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
            states: workspace::states(plan, &passes.of(Pass::Forward).mask),
        }
    }

    /// Peak memory of the rank, by class.
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

    /// Peak memory of all classes at once, whose own peaks are `peak`: the most of four moments. Outside of attention nothing is in flight;
    /// attention runs backward, or forward with its scores; in the last layer's backward the only gradients are those of earlier
    /// micro-batches; in the first layer's, activations of no other layer are kept. A tile's results are in flight once they are made.
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

    /// `bytes` that the ranks of a process share, counted for its first rank only.
    fn shared(&self, bytes: u64) -> u64 {
        if self.is_first { bytes } else { 0 }
    }

    /// Bytes of key and value gradients, of own queries, keys and values copied for the wire, and of blocks from other processes.
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

    /// Bytes of an element of own values that are copied into a narrower comm dtype; 0 where they travel as they are.
    fn copied(&self, part: Part) -> u64 {
        let wire = self.plan.block().wire.of(part) as u64;
        if wire < self.element { wire } else { 0 }
    }

    /// Bytes that a pass holds beside the own queries, keys, values and outputs, where everything received takes a buffer of its own.
    /// `alive` is in rows of heads.
    pub(crate) fn received(&self, pass: Pass, alive: Alive) -> u64 {
        let own = self.positions() as usize * self.plan.own.num_attention_heads;
        let [outputs, query_gradients] =
            [alive.outputs, alive.query_gradients].map(|rows| rows.saturating_sub(own));
        self.in_rows(pass, Alive { outputs, query_gradients, ..alive })
    }

    /// Bytes of the rows of heads in `alive`, in their comm dtypes.
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

    /// Bytes of one row of `width` sums of gradients: f32, or order-free.
    fn sums(&self, width: u64) -> u64 {
        match self.plan.experiment.block() {
            None => F32 * width,
            Some(_) => F32 * order_free_row(width as usize) as u64,
        }
    }

    /// Scratch bytes of one attention worker in backward: the operands of a block as panels, by rows and by columns.
    pub(crate) fn scratch(&self) -> u64 {
        let (rows, columns) = (ATTENTION_ROWS as u64, ATTENTION_COLUMNS as u64);
        let dim = self.plan.own.head_dim as u64;
        let width = dim.next_multiple_of(PANEL as u64);
        let (panels, sums) = (2 * columns * dim, 2 * columns * width + rows * width);
        let factors = columns * width + 2 * rows * width + 2 * rows * columns;
        match self.plan.experiment.model.dtype {
            Dtype::F32 => F32 * (panels + sums + factors),
            // bf16 is packed in pairs: panels are half as long, and factors are kept by rows and by columns.
            Dtype::Bf16 => F32 * (panels / 2 + sums + factors + factors / 2),
        }
    }

    /// Positions of one sequence that this rank holds.
    fn positions(&self) -> u64 {
        self.rows / self.plan.micro_batch as u64
    }

    /// Bytes of activations at their peak: what all layers keep, plus the peak of the loss or of the last layer's backward.
    fn activations(&self) -> u64 {
        let layer = product(&[self.rows, self.kept().1 + self.lent()]);
        let most = layer.saturating_add(self.in_loss()).max(self.in_layer());
        self.resident().saturating_add(most)
    }

    /// Peak of one layer's backward, bytes, with the activations that the layer kept.
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

    /// Bytes of own rows that a tensor-parallel rank holds while it gathers all rows from them, or scatters a sum into them.
    fn between_parts(&self) -> u64 {
        if self.plan.experiment.mesh.tensor == 1 {
            return 0;
        }
        product(&[self.rows, 2 * self.element * self.widths().r])
    }

    /// Bytes per row that a layer keeps for backward: its attention half, and the whole layer.
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

    /// Elements per row of projected queries and keys that are kept before their norms, for the backward of these norms.
    fn before_norms(&self) -> u64 {
        let Widths { a, k, .. } = self.widths();
        if self.plan.own.has_query_key_norm() { a + k } else { 0 }
    }

    /// Bytes of the activations of all layers but the last, and of the rotary angles.
    fn resident(&self) -> u64 {
        let rotary = product(&[self.positions(), self.plan.own.head_dim as u64, F32]);
        self.others().saturating_add(rotary)
    }

    /// Bytes per row of own keys and values that others may still read, where a layer would not keep them.
    fn lent(&self) -> u64 {
        let apart = self.plan.experiment.mesh.sequence > 1;
        let kept = self.memory.recompute == Recompute::None || self.copied(Part::KeyValue) > 0;
        let lent = apart && !kept;
        if lent { 2 * self.element * self.widths().k } else { 0 }
    }

    /// Peak of the feed-forward half's backward, bytes beside what is kept: the gradient of the output, and the most of two moments. One,
    /// for all rows or for a piece while gradients of the others wait: the norm; gate and up, unless they were kept; the gradient of their
    /// product; and three inputs and outputs in f32. The other: operands and results while products with the weights and for their
    /// gradients are packed.
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

    /// Peak of the attention half's backward down to attention, bytes beside what is kept: the gradient of the half's output with
    /// attention's by token and by head, or with attention's output by token while the projection's gradient is packed; or attention's
    /// gradient by head alone while queries, keys and values are recomputed: from the norm, by token, and queries also by head.
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

    /// Peak of the attention half's backward after attention, bytes beside the half's input: the gradient of its output; those of queries,
    /// keys and values by head and by token, or by token with the norm and its gradient while those are packed; and the norm's three inputs
    /// in f32 and its result.
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

/// Elements of one row, by tensor.
struct Widths {
    h: u64,
    /// Elements of a row between layers; with tensor parallelism, per row of the group, since each rank holds only some of the rows.
    r: u64,
    a: u64,
    k: u64,
    f: u64,
}

/// The product of `factors`, saturating at the largest number.
fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}
