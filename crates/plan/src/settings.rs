//! The settings of a plan that trade time for memory: those that its file leaves open are chosen by what its ranks would hold.

use annulus_experiment::{ClusterDevices, Offload, OffloadSpace, Settled};
use annulus_machine::memory;

use crate::Plan;
use crate::processes::RankKinds;

impl Plan {
    /// Chooses the open ones of the written settings, and computes what every rank does and holds with them.
    pub(crate) fn settle(&mut self) {
        let (memory, parallel) = &self.written;
        let (host, kinds) = (&self.experiment.host, self.rank_kinds());
        let needs = |settings| self.needs(settings, &kinds);
        let settled = memory.settle(host, parallel.state, self.rows(), needs);
        self.set(settled, &kinds);
    }

    /// The choices for the state's sharding that the file leaves open and that fit into the budget, each with the least recomputation, in
    /// the order in which a plan prefers them.
    pub fn fitting(&self) -> Vec<Settled> {
        let (memory, parallel) = &self.written;
        let (host, kinds) = (&self.experiment.host, self.rank_kinds());
        let needs = |settings| self.needs(settings, &kinds);
        memory.fitting(host, parallel.state, self.rows(), needs).collect()
    }

    /// This plan with other settings.
    #[must_use]
    pub fn with(mut self, settings: Settled) -> Plan {
        let kinds = self.rank_kinds();
        self.set(settings, &kinds);
        self
    }

    fn set(&mut self, settings: Settled, kinds: &RankKinds) {
        let (memory, parallel) = &self.written;
        (self.experiment.memory, self.experiment.parallel) = (memory.with(settings), *parallel);
        self.experiment.parallel.state = settings.state;
        self.memory = settings;
        self.ranks = self.rank_plans(kinds);
    }

    /// Bytes that the ranks of these kinds would hold with `settings`: together, or as many times as the fullest where each has a device of
    /// its own. `u64::MAX` where a node has too little room for what they would offload.
    fn needs(&self, settings: Settled, kinds: &RankKinds) -> u64 {
        if self.offload_space().is_some_and(|space| self.exceeds(space, settings, kinds)) {
            return u64::MAX;
        }
        // On a cluster every device has room for the fullest rank.
        if let Some(ClusterDevices { ranks, .. }) = self.experiment.host.cluster {
            return self.fullest_apart(settings, kinds).saturating_mul(ranks as u64);
        }
        self.fullest_with(settings, kinds)
    }

    /// Peak bytes of the fullest rank with `settings`, where each has a device of its own.
    pub fn held_on_cluster(&self, settings: Settled) -> u64 {
        self.fullest_apart(settings, &self.rank_kinds())
    }

    fn fullest_apart(&self, settings: Settled, kinds: &RankKinds) -> u64 {
        let all = self.experiment.mesh.replica(0).ranks();
        let fullest = all.map(|rank| self.held_apart(settings, kinds.of(rank)).1).max();
        fullest.unwrap_or_default()
    }

    /// The room for what is offloaded: of a described cluster's node, or of this machine for its GPUs. `None`: unlimited, or unknown.
    pub(crate) fn offload_space(&self) -> Option<OffloadSpace> {
        let host = &self.experiment.host;
        if let Some(cluster) = host.cluster {
            return cluster.offload;
        }
        let to_host = self.experiment.offload_place().folder(true).is_none();
        let devices = host.here.as_ref().map_or(self.world(), ExactSizeIterator::len);
        let bytes = memory().filter(|_| to_host && host.gpu_memory.is_some())?.bytes;
        Some(OffloadSpace { devices, bytes })
    }

    /// Whether the ranks of a node would offload more with `settings` than the node has room for.
    fn exceeds(&self, space: OffloadSpace, settings: Settled, kinds: &RankKinds) -> bool {
        if self.experiment.memory.offload == Offload::None {
            return false;
        }
        let [_, of_node] = self.offloaded_with(settings, kinds, space.devices);
        of_node > space.bytes
    }

    /// The most bytes that the ranks of these kinds would hold with `settings` in a memory that they share here.
    pub(crate) fn fullest_with(&self, settings: Settled, kinds: &RankKinds) -> u64 {
        let of_kind = |kind| self.held(settings, kind).peak;
        let held: Vec<u64> = kinds.all.iter().map(of_kind).collect();
        self.fullest(|rank| held[kinds.number(rank)])
    }
}
