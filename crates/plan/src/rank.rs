//! What one rank of a plan does and holds.

use annulus_sequence::Positions;
use serde::Serialize;

/// What one rank will hold and hand over, per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan {
    /// Its place in the world: replica `rank / mesh.sequence`, part `rank % mesh.sequence` of its
    /// sequences.
    pub rank: usize,
    /// The positions it holds of each of its sequences.
    pub positions: Positions,
    /// Visible (query, key) pairs of its queries, for one head of one layer of every kind, over all
    /// its sequences of the step.
    pub pairs: Vec<u64>,
    /// Attention's forward bytes of all layers and micro-batches: keys and values in the model's
    /// dtype. With `recompute` attention is not run again, so this is all.
    pub forward: u64,
    /// Attention's backward bytes, the way [`LayerKind::route`](crate::LayerKind::route) says: queries, keys and values in the
    /// model's dtype, gradients in f32.
    pub backward: u64,
    /// Bytes of the gradient sum. The trainer hands to `comm` one `all_reduce` over data and
    /// sequence per parameter in name order, f32, and one of an f64 tensor of 2 elements, the sum
    /// of losses and the count of targets. With one rank nothing is called, and this is 0.
    pub gradients: u64,
    /// Peak memory by class, bytes, where one worker computes: see [`Plan::with_cores`](crate::Plan::with_cores).
    pub peak: Peak,
    /// Peak memory of all classes at once, bytes: less than their sum, because they do not peak
    /// together.
    pub together: u64,
    /// What every further worker of attention takes, bytes of workspace.
    pub worker: u64,
    /// The most that a further worker packs products of matrices into, bytes of activations.
    pub packing: u64,
}

/// Peak memory of a rank by class, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Weights (and f32 masters where weights are bf16).
    pub weights: u64,
    /// f32 gradients.
    pub gradients: u64,
    /// Moments.
    pub optimizer: u64,
    /// Activations.
    pub activations: u64,
    /// Keys, values and their gradients in flight; a rank's own keys and values are activations.
    pub key_value: u64,
    /// What attention needs while it runs: its running state, packed operands, who sees whom.
    pub workspace: u64,
    /// Token ids.
    pub data: u64,
}

impl Peak {
    /// All classes.
    pub fn total(&self) -> u64 {
        self.classes().into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// The larger of both, class by class.
    pub(crate) fn most(self, other: Peak) -> Peak {
        Peak {
            weights: self.weights.max(other.weights),
            gradients: self.gradients.max(other.gradients),
            optimizer: self.optimizer.max(other.optimizer),
            activations: self.activations.max(other.activations),
            key_value: self.key_value.max(other.key_value),
            workspace: self.workspace.max(other.workspace),
            data: self.data.max(other.data),
        }
    }

    /// Every class by its name.
    pub fn classes(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("key_value", self.key_value),
            ("workspace", self.workspace),
            ("data", self.data),
        ]
    }
}
