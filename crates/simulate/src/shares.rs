//! What gathering sharded weights adds to a step.

use annulus_plan::{Group, Plan, StateSharding};

use crate::Cluster;
use crate::described::Ring;

/// How devices shard the state: each is a holder, unless they help each other as threads do.
pub(crate) fn sharding(plan: &Plan, cluster: &Cluster) -> StateSharding {
    if cluster.helping { plan.sharding() } else { plan.sharding_of(plan.memory.state, 1) }
}

/// The slowest of rings over these groups of ranks.
pub(crate) fn slowest(plan: &Plan, cluster: &Cluster, groups: &[Group]) -> Ring {
    let rings = groups.iter().map(|group| cluster.ring_of(*group, plan.experiment.mesh.tensor));
    let slowest = rings.min_by(|a, b| a.link.bandwidth.total_cmp(&b.link.bandwidth));
    slowest.unwrap_or(Ring { link: cluster.inside, port: 0 })
}

/// Gathers of sharded weights in a step, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gathers {
    /// What they pass.
    pub(crate) ring: Ring,
    /// Those that a micro-batch's forward, and its backward, can hide.
    pub(crate) behind: [f64; 2],
    /// That of a step's first stage, which only the gathers of other stages hide.
    first: f64,
    /// Those after the update, which nothing hides.
    after: f64,
}

impl Gathers {
    /// The gathers of a step of `plan`.
    pub(crate) fn of(plan: &Plan, cluster: &Cluster) -> Gathers {
        let sharding @ StateSharding { holders, state, .. } = sharding(plan, cluster);
        let [groups, _] = sharding.groups();
        let ring = slowest(plan, cluster, &groups);
        let none = Gathers { ring, behind: [0.0; 2], first: 0.0, after: 0.0 };
        if holders == 1 {
            return none;
        }
        let messages = holders as f64 - 1.0;
        let share = messages / sharding.parts() as f64;
        let Ring { link, .. } = ring;
        let seconds = |bytes: &f64| share * bytes / link.bandwidth + messages * link.latency;
        if !state.shards_weights() {
            return Gathers { after: plan.trained_weights().iter().map(seconds).sum(), ..none };
        }
        let stages: Vec<f64> = plan.read_weights().iter().map(seconds).collect();
        // Backward starts with the last stage's weights in place, and the first stage reads none.
        let ways = [&stages[..], &stages[1..stages.len() - 1]];
        Gathers { behind: ways.map(|stages| stages.iter().sum()), first: stages[0], ..none }
    }

    /// Seconds in which nothing is computed, of a step whose forward and backward passes wait so many seconds for weights.
    pub(crate) fn waits(&self, micro_batches: usize, [ahead, back]: [f64; 2]) -> f64 {
        // Nothing hides the gather of a step's first stage; those of later micro-batches hide behind the last layers' backward.
        self.after + self.first.max(ahead) - ahead + micro_batches as f64 * (ahead + back)
    }
}
