//! What gathering sharded weights adds to a step.

use annulus_plan::{Group, Plan, StateSharding};

use crate::{Cluster, Link};

/// How devices shard the state: each is a holder, unless they help each other as threads do.
pub(crate) fn sharding(plan: &Plan, cluster: &Cluster) -> StateSharding {
    if cluster.helping { plan.sharding() } else { plan.sharding_of(plan.memory.state, 1) }
}

/// The slowest link of rings over these groups of ranks.
pub(crate) fn slowest(plan: &Plan, cluster: &Cluster, groups: &[Group]) -> Link {
    let links = groups.iter().map(|group| cluster.ring_of(*group, plan.experiment.mesh.tensor));
    let slowest = links.min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    slowest.unwrap_or(cluster.inside)
}

/// Seconds of a step in which weights are gathered and nothing is computed; a micro-batch's passes take `passes` seconds, forward and
/// backward.
pub(crate) fn gathered(plan: &Plan, cluster: &Cluster, passes: [f64; 2]) -> f64 {
    let sharding @ StateSharding { holders, state, .. } = sharding(plan, cluster);
    if holders == 1 {
        return 0.0;
    }
    let [groups, _] = sharding.groups();
    let (link, messages) = (slowest(plan, cluster, &groups), holders as f64 - 1.0);
    let share = messages / sharding.parts() as f64;
    let seconds = |bytes: &f64| share * bytes / link.bandwidth + messages * link.latency;
    if !state.shards_weights() {
        return plan.trained_weights().iter().map(seconds).sum();
    }
    let stages: Vec<f64> = plan.read_weights().iter().map(seconds).collect();
    // Backward starts with the last stage's weights in place, and the first stage reads none.
    let ways = [&stages[..], &stages[1..stages.len() - 1]];
    let sent = [0, 1].map(|pass| {
        let of_pass = plan.ranks.iter().map(|rank| [rank.forward, rank.backward][pass]).max();
        of_pass.unwrap_or_default() as f64 / plan.micro_batches as f64 / link.bandwidth
    });
    let exposed = |(pass, stages): (usize, &[f64])| {
        // Attention's messages occupy the link meanwhile.
        (stages.iter().sum::<f64>() - (passes[pass] - sent[pass]).max(0.0)).max(0.0)
    };
    let [ahead, back] = [0, 1].map(|pass| exposed((pass, ways[pass])));
    // Nothing hides the gather of a step's first stage; those of later micro-batches hide behind the last layers' backward.
    stages[0].max(ahead) - ahead + plan.micro_batches as f64 * (ahead + back)
}
