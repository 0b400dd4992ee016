//! What one rank of a plan does and holds.

use annulus_memory::ByClass;
use annulus_sequence::Positions;

/// What one rank will hold and hand over, per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan {
    /// Its number in the world. Which replica it is of and which part of its sequences it has, the mesh says.
    pub rank: usize,
    /// The positions it holds of each of its sequences.
    pub positions: Positions,
    /// Visible (query, key) pairs of its queries, for one head of one layer of every group, over all
    /// its sequences of the step.
    pub pairs: Vec<u64>,
    /// Attention's forward bytes of all layers and micro-batches: keys and values in the model's
    /// dtype. With `recompute` attention is not run again, so this is all.
    pub forward: u64,
    /// Attention's backward bytes, the way [`LayerGroup::route`](crate::LayerGroup::route) says: queries, keys and values in the
    /// model's dtype, gradients in f32.
    pub backward: u64,
    /// Bytes of rows between tensor-parallel ranks, and of what they tell each other of losses, where every position has a target.
    pub tensor: u64,
    /// Bytes of the gradient sum: f32 slices to the ranks that sum them, sums to those of other processes that update the same, and
    /// three numbers. With one rank nothing is sent.
    pub gradients: u64,
    /// Bytes of weights: where processes hold shares of masters, what this rank has updated; where they hold shares of weights, its
    /// share of every stage whenever that is gathered.
    pub weights: u64,
    /// Peak memory by class, bytes, where one worker computes: see [`Plan::with_cores`](crate::Plan::with_cores).
    pub peak: ByClass,
    /// Peak memory of all classes at once, bytes: less than their sum, because they do not peak
    /// together.
    pub together: u64,
    /// What every further worker of attention takes, bytes of workspace.
    pub worker: u64,
    /// The most that a further worker packs products of matrices into, bytes of activations.
    pub packing: u64,
}

impl RankPlan {
    /// All bytes that it hands to others per step.
    pub fn sent(&self) -> u64 {
        self.forward + self.backward + self.tensor + self.gradients + self.weights
    }
}
