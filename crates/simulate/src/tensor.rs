//! What gathering and scattering rows between tensor-parallel ranks adds to a layer.

use annulus_plan::{Group, Plan};

use crate::Cluster;

/// Collectives of the embedding and the loss, in both passes.
pub(crate) const AT_ENDS: u64 = 4;

/// Seconds of `number` collectives, each of all rows of a micro-batch, in a ring over neighbours, hidden behind nothing; of the group
/// with the slowest links. Gathering and scattering take the same time.
pub(crate) fn collectives(plan: &Plan, cluster: &Cluster, number: u64) -> f64 {
    let ranks = plan.experiment.mesh.tensor;
    if ranks == 1 {
        return 0.0;
    }
    let groups = (0..plan.world() / ranks).map(|group| group * ranks);
    let links = groups.map(|first| cluster.ring_of(Group { first, step: 1, many: ranks }, 1).link);
    let slowest = links.min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    let (link, messages) = (slowest.unwrap_or(cluster.inside), ranks as f64 - 1.0);
    let element = plan.experiment.model.dtype.bytes();
    let bytes = (plan.rows() * plan.shape.hidden_size * element) as f64;
    let each = messages / ranks as f64 * bytes / link.bandwidth + messages * link.latency;
    number as f64 * each
}
