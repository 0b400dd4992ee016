//! Weights of which devices hold shares: what gathering them adds to a step.

use annulus_plan::{Plan, Sharing};

use crate::Cluster;

/// How devices hold the state: alone, unless they help each other as threads do.
pub(crate) fn sharing(plan: &Plan, cluster: &Cluster) -> Sharing {
    if cluster.helping { plan.sharing() } else { plan.sharing_of(plan.memory.state, 1) }
}

/// Seconds of a step in which weights are gathered and nothing else is done, where the passes of a micro-batch take so long, forward
/// and backward.
pub(crate) fn gathered(plan: &Plan, cluster: &Cluster, passes: [f64; 2]) -> f64 {
    let sharing @ Sharing { holders, state, .. } = sharing(plan, cluster);
    if holders == 1 {
        return 0.0;
    }
    let [span, _] = sharing.spans(plan.experiment.mesh.tensor);
    let (link, messages) = (cluster.ring_link(span), holders as f64 - 1.0);
    let share = messages / sharing.parts() as f64;
    let seconds = |bytes: &f64| share * bytes / link.bandwidth + messages * link.latency;
    if !state.shares_weights() {
        return plan.trained_weights().iter().map(seconds).sum();
    }
    let stages: Vec<f64> = plan.read_weights().iter().map(seconds).collect();
    // The last one's are there in backward, and the first reads none.
    let ways = [&stages[..], &stages[1..stages.len() - 1]];
    let sent = [0, 1].map(|pass| {
        let of_pass = plan.ranks.iter().map(|rank| [rank.forward, rank.backward][pass]).max();
        of_pass.unwrap_or_default() as f64 / plan.micro_batches as f64 / link.bandwidth
    });
    let exposed = |(pass, stages): (usize, &[f64])| {
        let (all, first) = (stages.iter().sum::<f64>(), if pass == 0 { stages[0] } else { 0.0 });
        // Attention's messages take the link as long.
        first.max(all - (passes[pass] - sent[pass]).max(0.0))
    };
    plan.micro_batches as f64 * ways.into_iter().enumerate().map(exposed).sum::<f64>()
}
