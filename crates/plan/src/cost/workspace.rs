//! Attention's workspace: what it holds while it runs, beside its inputs and results.
//!
//! Where scores are kept (Li et al.'s ring), forward has a workspace too, in f32 whatever the model computes in:
//!
//! ```text
//! scores     of all own queries, as many as the proof finds
//! meanwhile  one head's of one tile twice more; own queries and sums of values, 2 n a
//! in the end sums, and the output whole and in parts: 5 n a
//! ```

use annulus_experiment::Kernel;
use annulus_sequence::{Mask, Positions};

use super::{F32, Share, VISIBILITY, product, sum};
use crate::Plan;

/// Bytes of an f64.
const F64: u64 = 8;
/// Bytes of a piece of what a mask shows, while it is put into a view's list.
const PIECE: u64 = 2 * 88;

/// The running states of a query under a mask, and how many of them are of copied rows: all but one, which is of all rows; with order-free
/// sums all, where views are cut at strict blocks.
pub(super) fn states(plan: &Plan, mask: &Mask) -> [u64; 2] {
    let all = mask.states() as u64;
    let cut = plan.experiment.block().is_some() && !mask.is_of_two_spans();
    [all, if cut { all } else { all - 1 }]
}

/// Bytes of an element of keys and of one of values where a GPU is given several views of tiles at once, which together take no more than
/// the keys and values of a tile; a CPU is given one view at a time.
pub(super) fn viewed(plan: &Plan, mask: &Mask) -> u64 {
    let on_gpu = plan.experiment.host.computes_on_gpus();
    if on_gpu && !mask.is_of_two_spans() {
        2 * plan.experiment.model.dtype.bytes() as u64
    } else {
        0
    }
}

/// The number of views of some of a tile's keys that share its keys, where a CPU makes the gradients of one by themselves; `None`: views are
/// of all keys, or a GPU's, which [`viewed`] counts.
pub(super) fn thinned(plan: &Plan, mask: &Mask, positions: &Positions) -> Option<u64> {
    if plan.experiment.host.computes_on_gpus() {
        return None;
    }
    let apart = positions.runs().first().filter(|run| run.width == 1);
    mask.thinned_views(apart.map_or(1, |run| run.step)).map(|views| views as u64)
}

impl Share<'_> {
    /// Bytes of attention's workspace where scores do not outlive a tile.
    pub(super) fn workspace(&self) -> u64 {
        let (batch, dim) = (self.plan.micro_batch as u64, self.plan.own.head_dim as u64);
        let [_, backward] = self.computed;
        let made = product(&[2, batch, backward.keys as u64, self.sums(dim)]);
        self.forward_workspace().max(self.backward_workspace(made))
    }

    /// Bytes of forward's workspace.
    pub(super) fn forward_workspace(&self) -> u64 {
        let shape = &self.plan.own;
        let (state, [forward, _]) = (self.state(), self.computed);
        let packed = if self.plan.experiment.block().is_some() { 2 } else { 1 };
        let packed = product(&[packed, self.most, shape.key_value_width(), F32]).max(self.views());
        let attending = sum([self.running(state), self.seen(forward.tiles), packed]);
        let finished = shape.head_dim as u64 * self.narrowed + F32;
        let finished = product(&[self.rows, shape.num_attention_heads as u64, finished]);
        let finishing = self.joining(state).max(sum([state, finished]));
        sum([attending.max(finishing), self.scratch()])
    }

    /// Bytes of backward's workspace with so many of gradients of keys and values.
    pub(super) fn backward_workspace(&self, made: u64) -> u64 {
        let shape = &self.plan.own;
        let (state, [_, backward]) = (self.state(), self.computed);
        // In f64 keys and values of a tile are copied beside their gradients.
        let copied = if self.is_reference() { F64 * 4 } else { 0 };
        let copied = product(&[self.most, shape.key_value_width(), copied]);
        let results = sum([made, self.seen(backward.tiles), copied, self.views()]);
        let attending = sum([self.running(state), results]);
        let (batch, others) = (self.plan.micro_batch, self.taken[1].made.query_gradients);
        let others = product(&[batch as u64, others as u64, self.sums(shape.head_dim as u64)]);
        let finishing = self.joining(state).max(self.assembling(state));
        sum([attending.max(finishing), others, self.scratch()])
    }

    /// Bytes of a running state: the output, or the gradient of queries, with two statistics per row; in f64 also copies of queries and
    /// gradients of outputs.
    fn state(&self) -> u64 {
        let dim = self.plan.own.head_dim as u64;
        let row = if self.is_reference() {
            F64 * (3 * dim + 2)
        } else {
            self.sums(dim) + self.sums(1) + F32
        };
        product(&[self.rows, self.plan.own.num_attention_heads as u64, row])
    }

    /// Bytes of what so many tiles show.
    fn seen(&self, tiles: usize) -> u64 {
        let seen = sum([product(&[self.positions(), VISIBILITY]), self.pieces()]);
        product(&[seen, tiles as u64])
    }

    /// Bytes of keys and values in the views that a GPU is given at once.
    fn views(&self) -> u64 {
        product(&[self.most, self.plan.own.key_value_width(), self.viewed])
    }

    /// Whether attention is computed by the reference kernel of a CPU, in f64.
    pub(super) fn is_reference(&self) -> bool {
        let experiment = &self.plan.experiment;
        experiment.attention.kernel == Kernel::Reference && experiment.host.gpu_memory.is_none()
    }

    /// Bytes of what global positions cut a tile into: pieces of all others between any two of them.
    fn pieces(&self) -> u64 {
        let global = &self.plan.experiment.attention.masking.global;
        let ranges = global.iter().flatten().count() as u64;
        product(&[ranges, ranges, PIECE])
    }

    /// Bytes of all running states of queries, those of one each being `state`: of rows that are copied there are their queries and the
    /// gradients of their outputs, too.
    fn running(&self, state: u64) -> u64 {
        let [states, copied] = self.states;
        let rows = product(&[2, self.rows, self.plan.own.query_width(), self.element]);
        sum([product(&[state, states]), product(&[rows, copied])])
    }

    /// Bytes while the results of several states become one: of each state, and the sum; where residue classes are added, all of these
    /// once more before that, as on a GPU wherever rows with gaps are.
    fn joining(&self, state: u64) -> u64 {
        match self.states {
            [_, 0] => 0,
            [states, copied] if states == copied && self.viewed == 0 => {
                state.saturating_mul(states + 1)
            }
            [states, _] => state.saturating_mul(states + 2),
        }
    }

    /// Bytes of forward's workspace where scores are kept; 0 where none are.
    pub(super) fn scored(&self) -> u64 {
        if self.scores == 0 {
            return 0;
        }
        let batch = self.plan.micro_batch as u64;
        let queries = product(&[self.rows, self.plan.own.query_width(), F32]);
        let kept = product(&[batch, self.scores, F32]);
        let (keys, dim) = (self.most / batch, self.plan.own.head_dim as u64);
        let packed = self.packing(&[[self.positions(), keys, dim], [self.positions(), dim, keys]]);
        let of_head = product(&[self.positions(), self.most / batch, F32]);
        sum([kept, 2 * of_head, 2 * queries, packed]).max(5 * queries)
    }
}
