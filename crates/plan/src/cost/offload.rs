//! Activations and moments that are offloaded to a disk: what of them stays in memory, and what is written.

use std::sync::Arc;

use annulus_sequence::Schedules;

use super::{F32, Share, product, sum};
use crate::Plan;

/// Model stages whose activations may be on their way to or from a disk at the same time.
pub const OFFLOADS_IN_FLIGHT: usize = 2;
/// Bytes per write to, or read from, the offload disk.
pub const OFFLOAD_CHUNK: usize = 1 << 18;

impl Share<'_> {
    /// Bytes of activations of all layers but the last; of offloaded ones only what is on its way.
    pub(super) fn others(&self) -> u64 {
        let others = self.layers_but_the_last();
        let (here, chunk) = if self.plan.experiment.memory.offload.activations() {
            // A layer has two halves.
            (others.min(OFFLOADS_IN_FLIGHT.div_ceil(2)), OFFLOAD_CHUNK)
        } else {
            (others, 0)
        };
        sum([product(&[self.rows, self.kept().1, here as u64]), chunk as u64])
    }

    /// Bytes of AdamW's moments; of offloaded ones what is updated, written and read at the same time, for the largest parameters.
    pub(super) fn moments(&self) -> u64 {
        if !self.plan.experiment.memory.offload.optimizer() {
            return self.sliced() * 2 * F32;
        }
        let mut sizes: Vec<u64> = self.plan.trained_by_stage().concat();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        // The next parameter's moments are read meanwhile.
        sizes.truncate(OFFLOADS_IN_FLIGHT + 2);
        self.slices_of(&[sizes]) * 2 * F32 + OFFLOAD_CHUNK as u64
    }

    fn layers_but_the_last(&self) -> usize {
        self.plan.shape.num_hidden_layers - 1
    }
}

impl Plan {
    /// Bytes of moments written to disk, and read again, per step by the rank that has most; 0: moments stay in memory.
    pub fn offloaded_moments(&self) -> u64 {
        if !self.experiment.memory.offload.optimizer() {
            return 0;
        }
        let (trained, sharding) = (self.trained_by_stage().concat(), self.sharding());
        let last = sharding.ranks() - 1;
        let most = |elements: &u64| sharding.updated(*elements as usize, last).len() as u64;
        trained.iter().map(most).sum::<u64>() * 2 * F32
    }

    /// Bytes of activations written to disk, and read again, per micro-batch by the rank that has most; 0: activations stay in memory.
    pub fn offloaded(&self) -> u64 {
        if !self.experiment.memory.offload.activations() {
            return 0;
        }
        let kinds = self.kinds();
        let of_kind = |kind| {
            let of_group = |group: (usize, &Arc<Schedules>)| {
                let (group, passes) = group;
                let share = Share::new(self, self.memory, group, passes, kind, 1);
                product(&[share.rows, share.kept().1, share.layers_but_the_last() as u64])
            };
            self.passes.iter().enumerate().map(of_group).max().unwrap_or_default()
        };
        kinds.all.iter().map(of_kind).max().unwrap_or_default()
    }
}
