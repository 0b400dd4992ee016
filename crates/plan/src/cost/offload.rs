//! Activations and moments that are offloaded: what of them stays in memory, and what is written.

use std::sync::Arc;

use annulus_experiment::{Offload, Settled};
use annulus_sequence::Schedules;

use super::{F32, Share, product, sum};
use crate::processes::RankKinds;
use crate::{Plan, StateSharding};

/// Model stages whose activations may be on their way out or back at the same time.
pub const OFFLOADS_IN_FLIGHT: usize = 2;

impl Share<'_> {
    /// Bytes of activations of all layers but the last; of offloaded ones only what is on its way.
    pub(super) fn others(&self) -> u64 {
        let others = self.layers_but_the_last();
        let here = if self.plan.experiment.memory.offload.activations() {
            // A layer has two halves.
            others.min(OFFLOADS_IN_FLIGHT.div_ceil(2))
        } else {
            others
        };
        product(&[self.rows, self.kept().1, here as u64])
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
        self.slices_of(&[sizes]) * 2 * F32
    }

    fn layers_but_the_last(&self) -> usize {
        self.plan.shape.num_hidden_layers - 1
    }
}

impl Plan {
    /// Bytes of moments written, and read again, per step by the rank that has most; 0: moments stay in memory.
    pub fn offloaded_moments(&self) -> u64 {
        self.moments_offloaded(self.sharding())
    }

    fn moments_offloaded(&self, sharding: StateSharding) -> u64 {
        if !self.experiment.memory.offload.optimizer() {
            return 0;
        }
        let trained = self.trained_by_stage().concat();
        let last = sharding.ranks() - 1;
        let most = |elements: &u64| sharding.updated(*elements as usize, last).len() as u64;
        trained.iter().map(most).sum::<u64>() * 2 * F32
    }

    /// Bytes of activations written, and read again, per micro-batch by the rank that has most; 0: activations stay in memory.
    pub fn offloaded(&self) -> u64 {
        let by_kind = self.activations_offloaded(self.memory, &self.rank_kinds());
        by_kind.into_iter().max().unwrap_or_default()
    }

    /// Bytes that are offloaded at the same time, at most: the activations of a micro-batch, and moments. Of the rank that has most, and of
    /// the node that has most, where `devices` neighbouring ranks are on a node.
    pub fn offloaded_at_once(&self, devices: usize) -> [u64; 2] {
        if self.experiment.memory.offload == Offload::None {
            return [0; 2];
        }
        self.offloaded_with(self.memory, &self.rank_kinds(), devices)
    }

    /// [`Plan::offloaded_at_once`] with `settings`.
    pub(crate) fn offloaded_with(
        &self,
        settings: Settled,
        kinds: &RankKinds,
        devices: usize,
    ) -> [u64; 2] {
        let sharding = self.sharding_of(settings.state, self.summing_beside());
        let moments = self.moments_offloaded(sharding);
        let activations = self.activations_offloaded(settings, kinds);
        let of_rank = |rank: usize| sum([activations[kinds.number(rank)], moments]);
        let by_rank: Vec<u64> = (0..self.world()).map(of_rank).collect();
        let nodes = by_rank.chunks(devices.max(1)).map(|node| sum(node.iter().copied()));
        [by_rank.iter().copied().max(), nodes.max()].map(Option::unwrap_or_default)
    }

    /// Bytes of activations that a rank of each kind offloads per micro-batch.
    fn activations_offloaded(&self, settings: Settled, kinds: &RankKinds) -> Vec<u64> {
        if !self.experiment.memory.offload.activations() {
            return vec![0; kinds.all.len()];
        }
        let of_kind = |kind| {
            let of_group = |group: (usize, &Arc<Schedules>)| {
                let (group, schedules) = group;
                let share = Share::new(self, settings, group, schedules, kind, 1);
                product(&[share.rows, share.kept().1, share.layers_but_the_last() as u64])
            };
            self.schedules.iter().enumerate().map(of_group).max().unwrap_or_default()
        };
        kinds.all.iter().map(of_kind).collect()
    }
}
