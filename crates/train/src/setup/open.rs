//! The plan of an experiment whose strategy may be open (`strategy: auto`). It is chosen once: the run's folder keeps what an earlier
//! attempt chose, and later attempts keep to it.

use annulus_comm::World;
use annulus_experiment::{Attention, Experiment, Resolved, parse};
use annulus_model::element_type;
use annulus_plan::Plan;
use annulus_simulate::{Cluster, plans as plans_of, plans_measured};

use crate::Result;
use crate::checkpoint::{identity, last_checkpoint};
use crate::folder::RESOLVED;
use crate::setup::device;
use crate::setup::rates::SpeedProbe;
use crate::setup::shared::unreached;

/// The plans of all phases of an experiment on a machine with `cores` cores. With `strategy: auto`, unless a choice was made before or a
/// cluster is described, the machine is measured, which takes a fraction of a second. Of several processes all are measured: the others get
/// the experiment, and must call [`measured`].
///
/// # Errors
/// A bad experiment, or a device that cannot be used.
pub(crate) fn plans(resolved: &Resolved, cores: usize, world: &World) -> Result<Vec<Plan>> {
    let experiment = &resolved.experiment;
    if !experiment.attention.is_open() {
        return Ok(plans_of(resolved)?);
    }
    if let Some(attention) = earlier(experiment) {
        return Ok(plans_of(&resolved.with(Experiment { attention, ..experiment.clone() }))?);
    }
    let mut failed = None;
    let plans = plans_measured(resolved, |ranks| {
        let told = world.gather(experiment.to_yaml().as_bytes()).map_err(unreached);
        let measured = told.and_then(|_| measured(resolved, cores, world));
        measured.unwrap_or_else(|error| {
            failed = Some(error);
            Cluster::threads(ranks, cores)
        })
    });
    // If measuring failed, plans made without it do not count, nor that there are none.
    failed.map_or_else(|| Ok(plans?), Err)
}

/// The measured speed of the ranks of an experiment on this machine and, of several processes, on those of the others, which must all
/// measure.
///
/// # Errors
/// A device that cannot be used, and a process that is late or gone.
pub fn measured(resolved: &Resolved, cores: usize, world: &World) -> Result<Cluster> {
    let mesh = &resolved.experiment.mesh;
    let probe = probe(&resolved.experiment, resolved.model.head_dim, cores, world)?;
    probe.measure_over(world, mesh.ranks())
}

/// The measured speed of this machine with the ranks of a plan; takes a fraction of a second.
///
/// # Errors
/// A device that cannot be used.
pub fn rates(plan: &Plan, cores: usize) -> Result<Cluster> {
    let alone = World::alone();
    probe(&plan.experiment, plan.shape.head_dim, cores, &alone)?.measure(plan.world())
}

fn probe(
    experiment: &Experiment,
    head_dim: usize,
    cores: usize,
    world: &World,
) -> Result<SpeedProbe> {
    Ok(SpeedProbe {
        head_dim,
        dtype: element_type(experiment.model.dtype),
        kernel: experiment.attention.kernel,
        deterministic: experiment.attention.deterministic,
        cores,
        processors: device::open_planned(experiment, world)?,
    })
}

/// The attention that an earlier attempt at the same run chose for the same ranks. It is the same run if no more differs than may on a
/// resume.
fn earlier(experiment: &Experiment) -> Option<Attention> {
    let text = std::fs::read_to_string(experiment.output.join(RESOLVED)).ok()?;
    let before = parse(RESOLVED, &text, &[]).ok()?;
    let (then, now) = (&before.mesh, &experiment.mesh);
    let same_ranks = (then.data, then.sequence, then.tensor, then.order, &then.weights)
        == (now.data, now.sequence, now.tensor, now.order, &now.weights)
        && then.cluster == now.cluster;
    let same = || {
        let step = last_checkpoint(&experiment.output).unwrap_or(0);
        identity::of_keys(&before, experiment, step).is_empty()
    };
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
