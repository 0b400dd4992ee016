//! Plans of experiments, with strategies chosen first where they are left open: for the cluster that `mesh.cluster` describes, else for
//! this machine.

use annulus_experiment::{Experiment, Host, Resolved};
use annulus_plan::{Chosen, Plan};
use annulus_yaml::Problems;

use crate::{Choice, Cluster, Estimate};

/// The plan of an experiment; with several phases, of the last. A strategy for this machine is chosen by typical rates: [`plans_measured`]
/// takes measured ones.
///
/// # Errors
/// Everything that is wrong with the experiment or its cluster's file.
pub fn plan(resolved: &Resolved) -> Result<Plan, Problems> {
    let mut plans = plans(resolved)?;
    Ok(plans.swap_remove(plans.len() - 1))
}

/// The plans of all phases. An open strategy is chosen for the longest sequences, and is the same in all phases.
///
/// # Errors
/// What is wrong with any phase, or with the cluster's file.
pub fn plans(resolved: &Resolved) -> Result<Vec<Plan>, Problems> {
    plans_measured(resolved, |ranks| Cluster::threads(ranks, annulus_machine::cores()))
}

/// The plans of all phases by measured rates: `measure` gets the number of ranks and returns this machine with its rates. It is called only
/// where `strategy: auto` needs it and no cluster is described.
///
/// # Errors
/// What is wrong with any phase, or with the cluster's file.
pub fn plans_measured(
    resolved: &Resolved,
    measure: impl FnOnce(usize) -> Cluster,
) -> Result<Vec<Plan>, Problems> {
    let mut resolved = resolved.clone();
    let experiment = &mut resolved.experiment;
    let described = experiment.mesh.cluster.as_deref().map(Cluster::load).transpose()?;
    if let Some(cluster) = &described {
        *experiment = cluster.place(experiment.clone());
    }
    let mut chosen = None;
    if experiment.attention.is_open() {
        experiment.check()?;
        // Problems of the model do not depend on the strategy.
        for phase in resolved.phases() {
            phase.shape()?;
        }
        let phases = resolved.phases().into_iter();
        let longest = phases.max_by_key(|phase| phase.experiment.data.tokens);
        let longest = longest.unwrap_or_else(|| resolved.clone());
        let this_machine = || this_machine(&longest.experiment, measure);
        let cluster = described.clone().unwrap_or_else(this_machine);
        let choice = Choice::among(&longest, &cluster)?;
        let Some(settled) = choice.settled(&longest.experiment) else {
            return Err(choice.none(&longest.experiment).into());
        };
        resolved.experiment.attention = settled.attention;
        let (text, whole) = (choice.to_summary(), choice.to_text());
        chosen = Some(Chosen { text, whole, json: choice.to_json() });
    }
    let mut plans = Plan::phases(&resolved)?;
    if let Some(cluster) = &described {
        let settled = plans.into_iter().map(|plan| Ok(Estimate::fastest(plan, cluster)?.0));
        plans = settled.collect::<Result<_, Problems>>()?;
    }
    for plan in &mut plans {
        plan.choice.clone_from(&chosen);
    }
    Ok(plans)
}

/// The number of ranks that share this machine's memory, or that of a GPU.
pub(crate) fn ranks_of_memory(experiment: &Experiment) -> u64 {
    let (ranks, host) = (experiment.mesh.ranks(), &experiment.host);
    let here = host.here.as_ref().map_or(ranks, ExactSizeIterator::len);
    let sharing = if host.gpu_memory.is_some() { ranks / host.sharing() } else { here };
    sharing.max(1) as u64
}

/// This machine as `measure` describes it, with the budget shared evenly by its ranks, or a GPU's by the ranks that share it.
fn this_machine(experiment: &Experiment, measure: impl FnOnce(usize) -> Cluster) -> Cluster {
    let ranks = experiment.mesh.ranks();
    let memory = experiment.memory.budget(&experiment.host) / ranks_of_memory(experiment);
    let memory = Some(memory);
    let Host { core, workers: cores, .. } = experiment.host;
    Cluster { memory, cores, core, ..measure(ranks) }
}
