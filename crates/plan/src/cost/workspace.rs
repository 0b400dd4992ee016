//! Attention's workspace: what it holds while it runs, beside its inputs and results.
//!
//! Where scores are kept (Li et al.'s ring), forward has a workspace too, in f32 whatever the model computes in:
//!
//! ```text
//! scores     of all own queries, as many as the proof finds
//! meanwhile  one head's of one tile twice more; own queries and sums of values, 2 n a
//! in the end sums, and the output whole and in parts: 5 n a
//! ```

use super::{F32, Share, VISIBILITY, product};

impl Share<'_> {
    /// Bytes of attention's workspace where scores do not outlive a tile.
    pub(super) fn workspace(&self) -> u64 {
        let [forward, backward] = self.computed;
        let shape = &self.plan.own;
        let (heads, dim) = (shape.num_attention_heads as u64, shape.head_dim as u64);
        // The running output, or the gradient of queries, with two statistics per row.
        let state = product(&[self.rows, heads, self.sums(dim) + self.sums(1) + F32]);
        let seen = product(&[self.positions(), VISIBILITY]);
        let packed = if self.plan.experiment.block().is_some() { 2 } else { 1 };
        let key_values = product(&[packed, self.most, shape.key_value_width(), F32]);
        let batch = self.plan.micro_batch as u64;
        let made = product(&[2, batch, backward.keys as u64, self.sums(dim)]);
        let results = made.saturating_add(seen.saturating_mul(backward.tiles as u64));
        let packed = seen.saturating_mul(forward.tiles as u64).saturating_add(key_values);
        let finished = product(&[self.rows, heads, dim * self.narrowed + F32]);
        let others = self.taken[1].made.query_gradients as u64;
        let others = product(&[batch, others, self.sums(dim)]);
        let attending = state.saturating_add(results.max(packed).max(finished));
        attending.saturating_add(others).saturating_add(self.scratch())
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
        let scoring = [kept, 2 * of_head, 2 * queries].into_iter().fold(0, u64::saturating_add);
        scoring.saturating_add(packed).max(5 * queries)
    }
}
