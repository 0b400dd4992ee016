//! Rows between tensor-parallel ranks: what gathering and scattering them adds to layers.

use annulus_plan::Plan;

use crate::Cluster;

/// Of the embedding and of the loss, in both passes: what is gathered and what is scattered.
pub(crate) const AT_ENDS: u64 = 4;

/// Seconds of so many collectives, each of all rows of a micro-batch, behind nothing: a ring over neighbours. Gathering and scattering
/// take as long.
pub(crate) fn collectives(plan: &Plan, cluster: &Cluster, number: u64) -> f64 {
    let ranks = plan.experiment.mesh.tensor;
    if ranks == 1 {
        return 0.0;
    }
    let (link, messages) = (cluster.ring_link(ranks), ranks as f64 - 1.0);
    let element = plan.experiment.model.dtype.bytes();
    let bytes = (plan.rows() * plan.shape.hidden_size * element) as f64;
    let each = messages / ranks as f64 * bytes / link.bandwidth + messages * link.latency;
    number as f64 * each
}
