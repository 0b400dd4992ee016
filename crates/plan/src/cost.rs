//! Bytes of memory and of gradient sums, from shapes alone.
//!
//! What a rank holds at its peak, by class. Within a process a lent block counts for its owner, and a block that is given away counts where
//! it was made; a block from another process arrives in a buffer of the receiver's. With n rows of a micro-batch (S of a sequence), h =
//! `hidden_size`, a and k the widths of all query and all KV heads of D, f = `intermediate_size`, V the vocabulary, L layers, e
//! bytes of an element; with tensor parallelism a, k, f and V are those of one rank:
//!
//! ```text
//! weights    e per element, once for the ranks of a process; f32 masters of bf16, of what is trained: of each of those ranks a slice;
//!            where both are sharded, a slice of both for each of all ranks, and one whole stage (`cost/sums.rs`)
//! gradients  f32, of what is trained, from when a product makes them: of some stages whole, of the others a slice
//!            (`cost/gradients.rs`); the loss's and the embedding's are activations until they are handed over
//! optimizer  two f32 per element that is trained: of each rank of a process a slice; offloaded, of a few parameters
//! key_value  f32 2 k, of as many rows as the proof finds alive of what one rank has made; what the
//!            wire narrows of the own queries (2 a) and keys and values (2 k); what came from other processes, as it travels;
//!            where views have some of the keys, the gradients of one
//! workspace  n heads (D + 2) f32 of running state, 2 n k f32 of a tile's results, 32 S of who sees
//!            whom, one worker's scratch; f32 of others' queries' gradients, as many as the proof finds
//! data       ids and targets of the own rows and positions, and what is read at a time
//! ```
//!
//! Activations are what layers keep, plus the most that is held beside it at one moment of backward ([`Share::activations`]), with what
//! that moment's matrix products pack into (`cost/packing.rs`) and, on a CPU, the f32 copy of the bf16 weight that one reads. Workers'
//! buffers are of one worker: [`Plan::with_cores`] adds more.

mod counts;
mod data;
mod gradients;
mod layer;
mod loss;
mod offload;
mod packing;
mod reduction;
mod sums;
mod workspace;

use annulus_architecture::Dtype;
use annulus_experiment::Settled;
use annulus_machine::blocks::{ATTENTION_COLUMNS, ATTENTION_ROWS, PANEL};
use annulus_memory::{ByClass, Class};
use annulus_sequence::{Alive, Computed, Part, Pass, Schedule, Schedules, Taken, order_free_row};
pub use offload::OFFLOADS_IN_FLIGHT;
use reduction::Reduction;
pub use sums::SUMS_IN_FLIGHT;

use crate::Plan;
use crate::processes::RankKind;

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
    /// Bytes of an element of keys and of values that a GPU is given as several views; 0 where a tile is one, and on a CPU.
    viewed: u64,
    /// How many views share a tile's keys, whose gradients are made one view at a time, beside those of all keys.
    thinned: Option<u64>,
    /// How gradients of keys and values reach their owners.
    reduction: Reduction,
}

impl Share<'_> {
    /// The work of a rank of `kind` while the layers of `group` run; `workers` compute its matrix products, and one its attention.
    pub(crate) fn new<'a>(
        plan: &'a Plan,
        memory: Settled,
        group: usize,
        schedules: &Schedules,
        kind: &RankKind,
        workers: usize,
    ) -> Share<'a> {
        let place = kind.place;
        let Schedule { positions, mask, .. } = schedules.of(Pass::Forward);
        let [most, rows] = [schedules.longest(), positions[place].tokens()]
            .map(|tokens| (plan.micro_batch * tokens) as u64);
        let element = plan.experiment.model.dtype.bytes() as u64;
        let (widened, narrowed) = match plan.experiment.model.dtype {
            Dtype::F32 => (0, 0),
            Dtype::Bf16 => (F32, element),
        };
        let scores = schedules.proof(Pass::Forward).alive[place].scores as u64;
        Share {
            plan,
            memory,
            workers,
            rows,
            most,
            element,
            widened,
            narrowed,
            computed: schedules.proofs().map(|proof| proof.computed[place]),
            taken: kind.taken[group],
            elsewhere: kind.elsewhere as u64,
            here: kind.here as u64,
            is_first: kind.is_first,
            is_writer: kind.is_writer,
            scores,
            states: workspace::states(plan, mask),
            viewed: workspace::viewed(plan, mask),
            thinned: workspace::thinned(plan, mask, &positions[place]),
            reduction: Reduction::of(plan, group, schedules, place),
        }
    }

    /// Peak memory of the rank, by class.
    pub(crate) fn peak_by_class(&self) -> ByClass {
        let masters = match self.plan.experiment.model.dtype {
            Dtype::F32 => 0,
            Dtype::Bf16 => F32,
        };
        ByClass::new(|class| match class {
            Class::Weights => self.weights() + self.sliced() * masters + self.copied_weights(),
            Class::Gradients => self.gradients().most,
            Class::Optimizer => self.moments() + self.copied_optimizer(masters),
            Class::Activations => self.activations(),
            Class::KeyValue => self.key_values().into_iter().max().unwrap_or_default(),
            Class::Workspace => self.workspace().max(self.scored()),
            Class::Data => self.data(),
        })
    }

    /// Peak memory of the rank, of all classes at the same moment, where `by_class` has the peak of each, and `key_values` that of key/value
    /// in each pass: the most of some moments. Outside of attention nothing is in flight; attention runs backward, or forward; forward the
    /// only gradients are those of earlier micro-batches; in the last layer's backward there are its own and the loss's; in the first
    /// layer's, activations of no other layer are kept; in the embedding's, of none.
    pub(crate) fn peak(&self, by_class: &ByClass, key_values: [u64; 2]) -> u64 {
        let Widths { h, a, k, .. } = self.widths();
        let elements = 2 * h + 2 * a + 2 * k + self.before_norms();
        let computing = product(&[self.rows, self.element * elements]);
        let attending = |key_value: u64, workspace: u64| {
            sum([self.resident(), computing, key_value, workspace])
        };
        let scoring = attending(key_values[0], self.scored());
        // Results of tiles are key/value once they are made.
        let backward = attending(key_values[1], self.backward_workspace(self.copied_results()));
        let attending = attending(key_values[0], self.forward_workspace()).max(backward);
        let forward = by_class[Class::Activations].max(attending).max(scoring);
        let earlier = F32 * self.sliced();
        let earlier = if self.plan.micro_batches > 1 { earlier } else { 0 };
        let (gradients, backward) = (self.gradients(), self.in_layer());
        let last = sum([self.resident(), backward.with(gradients.in_last)]);
        let last = last.max(sum([attending, gradients.in_last[1]]));
        let in_layer = sum([self.resident(), backward.most()]).max(attending);
        let first = sum([in_layer, gradients.backward]).saturating_sub(self.others());
        let [rows, of_table] = self.in_embedding();
        // The gradient of tied weights is held beside that of the loss; otherwise it is counted already.
        let beside = if self.plan.shape.tie_word_embeddings { of_table } else { 0 };
        let end = sum([rows, beside, gradients.most]);
        let most = sum([forward, earlier]).max(last).max(first).max(end);
        let [weights, optimizer] = [by_class[Class::Weights], by_class[Class::Optimizer]];
        sum([most, weights, optimizer, by_class[Class::Data], self.scratch()])
    }

    /// `bytes` that the ranks of a process share, counted for its first rank only.
    fn shared(&self, bytes: u64) -> u64 {
        if self.is_first { bytes } else { 0 }
    }

    /// Bytes of key and value gradients, of own queries, keys and values copied for the wire, and of blocks from other processes: in each
    /// pass.
    pub(crate) fn key_values(&self) -> [u64; 2] {
        let (batch, dim) = (self.plan.micro_batch as u64, self.plan.own.head_dim as u64);
        let Widths { a, k, .. } = self.widths();
        let own = 2 * (a * self.copied(Part::Query) + k * self.copied(Part::KeyValue));
        let [forward, backward] = self.taken;
        let made = product(&[2, batch, backward.made.gradients as u64, self.sums(dim)]);
        let heads = self.plan.own.num_key_value_heads as u64;
        let thinned = self
            .thinned
            .map_or(0, |views| product(&[2, self.most.div_ceil(views), heads, self.sums(dim)]));
        let forward = self.in_rows(Pass::Forward, forward.received);
        let beyond = self.beyond_proof(backward.made.gradients);
        let backward =
            sum([self.in_rows(Pass::Backward, backward.received), made, beyond, thinned]);
        [forward, backward].map(|pass| sum([pass, product(&[self.rows, own])]))
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
        product(&[sum(rows), self.plan.micro_batch as u64])
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
        let most = sum([layer, self.in_loss()]).max(self.in_layer().most());
        sum([self.resident(), most]).max(sum(self.in_embedding()))
    }

    /// Bytes of the activations of all layers but the last, and of the rotary angles.
    fn resident(&self) -> u64 {
        let rotary = product(&[self.positions(), self.plan.own.head_dim as u64, F32]);
        sum([self.others(), rotary])
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

/// The sum of `terms`, saturating at the largest number.
pub(crate) fn sum(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

/// The product of `factors`, saturating at the largest number.
fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}
