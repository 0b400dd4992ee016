//! The plan of an experiment whose strategy may be left open. It is chosen once: what an earlier
//! attempt chose is kept in its run's folder, and a later one goes on with that.

use annulus_experiment::{Attention, Experiment, Resolved, differences, parse};
use annulus_model::element_type;
use annulus_plan::Plan;
use annulus_simulate::{Cluster, plans as plans_of, plans_measured};

use crate::Result;
use crate::run::folder::RESOLVED;
use crate::setup::device;
use crate::setup::rates::Sample;

/// The plans of all phases of an experiment on a machine with so many cores. With `strategy: auto`, and
/// unless it has been chosen before or a cluster is described, the machine is measured: a fraction of a
/// second.
///
/// # Errors
/// What is wrong with the experiment, or a device that cannot be used.
pub(crate) fn plans(resolved: &Resolved, cores: usize) -> Result<Vec<Plan>> {
    let experiment = &resolved.experiment;
    if !experiment.attention.is_open() {
        return Ok(plans_of(resolved)?);
    }
    if let Some(attention) = earlier(experiment) {
        return Ok(plans_of(&resolved.with(Experiment { attention, ..experiment.clone() }))?);
    }
    let sample = sample(experiment, resolved.model.head_dim, cores)?;
    let mut failed = None;
    let plans = plans_measured(resolved, |ranks| {
        sample.measure(ranks).unwrap_or_else(|error| {
            failed = Some(error);
            Cluster::threads(ranks, cores)
        })
    })?;
    failed.map_or(Ok(plans), Err)
}

/// What this machine achieves with the ranks of a plan, measured: a fraction of a second.
///
/// # Errors
/// A device that cannot be used.
pub fn rates(plan: &Plan, cores: usize) -> Result<Cluster> {
    sample(&plan.experiment, plan.shape.head_dim, cores)?.measure(plan.world())
}

fn sample(experiment: &Experiment, head_dim: usize, cores: usize) -> Result<Sample> {
    Ok(Sample {
        head_dim,
        dtype: element_type(experiment.model.dtype),
        kernel: experiment.attention.kernel,
        deterministic: experiment.attention.deterministic,
        cores,
        processor: device::open(experiment.device)?,
    })
}

/// What an earlier attempt at the same run chose on the same ranks.
fn earlier(experiment: &Experiment) -> Option<Attention> {
    let text = std::fs::read_to_string(experiment.output.join(RESOLVED)).ok()?;
    let before = parse(RESOLVED, &text, &[]).ok()?;
    let (then, now) = (&before.mesh, &experiment.mesh);
    let same_ranks = (then.data, then.sequence, &then.weights)
        == (now.data, now.sequence, &now.weights)
        && then.cluster == now.cluster;
    let same = || differences(&before, experiment).is_empty();
    let settled = same_ranks && !before.attention.is_open() && same();
    let Attention { strategy, layout, backward, sliding, .. } = before.attention;
    settled.then(|| Attention {
        strategy,
        layout,
        backward,
        sliding,
        automatic: false,
        ..experiment.attention.clone()
    })
}
