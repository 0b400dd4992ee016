//! The longest sequences that fit into memory.

use annulus_experiment::Resolved;
use annulus_plan::Plan;

use crate::table::fits;
use crate::{Cluster, Estimate};

/// The most ranks of a sequence for which this is computed: more take long to walk.
const MOST_RANKS: usize = 256;
/// The resolution of lengths, in tokens per rank.
const GRAIN: usize = 1024;
/// The longest sequence that is tried.
const MOST_TOKENS: usize = 1 << 28;

/// The longest sequence, in tokens, that fits on `cluster` for an experiment that names its strategies; exact to 1024 tokens per rank.
/// `None`: not even short ones fit, or there are too many ranks to tell.
pub fn longest(resolved: &Resolved, cluster: &Cluster) -> Option<usize> {
    let experiment = &resolved.experiment;
    let ranks = experiment.mesh.sequence;
    let cluster = &cluster.budgeted(&experiment.memory);
    // Without a memory limit there is no longest sequence.
    cluster.budget.filter(|_| ranks <= MOST_RANKS)?;
    let grain = GRAIN.next_multiple_of(experiment.mesh.tensor) * ranks;
    let fitting = |grains: usize| {
        let mut experiment = experiment.clone();
        experiment.data.tokens = grains * grain;
        experiment.extend = None;
        let plan = Plan::new(&resolved.with(cluster.place(experiment))).ok();
        let estimate = plan.and_then(|plan| Estimate::of(&plan, cluster).ok());
        estimate.is_some_and(|estimate| fits(&estimate, cluster))
    };
    let (mut least, mut most) = (0, 1);
    while fitting(most) {
        (least, most) = (most, 2 * most);
        if most * grain > MOST_TOKENS {
            return None;
        }
    }
    while most - least > 1 {
        let middle = least.midpoint(most);
        if fitting(middle) { least = middle } else { most = middle }
    }
    (least > 0).then_some(least * grain)
}
