//! What one rank of a plan does and holds.

use annulus_memory::{ByClass, Class};
use annulus_sequence::Positions;

/// What one rank holds, and sends per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan {
    /// The rank's number in the world; the mesh says which replica and which positions it has.
    pub rank: usize,
    /// The positions that the rank holds of each of its sequences.
    pub positions: Positions,
    /// Visible (query, key) pairs of the rank's queries, by layer group: for one head of one layer, over all its sequences of the step.
    pub pairs: Vec<u64>,
    /// Bytes that attention sends forward over all layers and micro-batches, in the comm dtypes. Recomputation does not run attention
    /// again, so this is all.
    pub forward: u64,
    /// Bytes that attention sends backward along [`LayerGroup::route`](crate::LayerGroup::route) over all layers and micro-batches, in the
    /// comm dtypes.
    pub backward: u64,
    /// Bytes of rows sent between tensor-parallel ranks, and of their losses' statistics, where every position has a target.
    pub tensor: u64,
    /// Bytes of the gradient sum: f32 slices to the ranks that sum them, sums to the ranks of other processes that update the same
    /// elements, and three numbers. A single rank sends nothing.
    pub gradients: u64,
    /// Bytes of weights sent: with sharded masters what this rank has updated; with sharded weights its shard of every model stage, each
    /// time that is gathered.
    pub weights: u64,
    /// Peak memory by class, bytes, with one worker: see [`Plan::with_cores`](crate::Plan::with_cores).
    pub peak_by_class: ByClass,
    /// Peak memory, bytes, of all classes at the same moment: less than their sum, because they peak at different times.
    pub peak: u64,
    /// Bytes of workspace that each further attention worker takes.
    pub worker: u64,
    /// Bytes of activations: the most that each further worker packs operands of matrix products into.
    pub packing: u64,
}

impl RankPlan {
    /// All bytes that the rank sends per step.
    pub fn sent(&self) -> u64 {
        self.forward + self.backward + self.tensor + self.gradients + self.weights
    }
}

/// What a rank of one kind holds, bytes, as a plan counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RankMemory {
    /// As [`RankPlan::peak_by_class`].
    pub(crate) peak_by_class: ByClass,
    /// As [`RankPlan::peak`].
    pub(crate) peak: u64,
    /// As [`RankPlan::worker`].
    pub(crate) worker: u64,
    /// As [`RankPlan::packing`].
    pub(crate) packing: u64,
}

impl RankMemory {
    /// The larger of each: of layer groups that run one after the other.
    pub(crate) fn most(self, other: RankMemory) -> RankMemory {
        RankMemory {
            peak_by_class: self.peak_by_class.most(other.peak_by_class),
            peak: self.peak.max(other.peak),
            worker: self.worker.max(other.worker),
            packing: self.packing.max(other.packing),
        }
    }

    /// With `bytes` more of workspace.
    pub(crate) fn and_workspace(self, bytes: u64) -> RankMemory {
        let workspace = self.peak_by_class[Class::Workspace].saturating_add(bytes);
        let peak_by_class = self.peak_by_class.with(Class::Workspace, workspace);
        RankMemory { peak_by_class, peak: self.peak.saturating_add(bytes), ..self }
    }
}
