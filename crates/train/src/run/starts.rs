//! The starts of a run, as its manifest lists them.

use std::collections::BTreeMap;

use annulus_comm::RankHosts;
use annulus_plan::Plan;
use annulus_sequence::Strategy;
use annulus_text::count;

use crate::checkpoint::identity;
use crate::folder::manifest::{
    Machine, Manifest, Mpi, Nccl, Process, RunStart, UNKNOWN, differing, now,
};
use crate::folder::record::Record;
use crate::folder::run_folder::{RunFolder, write_experiment};
use crate::run::held_out;
use crate::run::options::RunOptions;
use crate::run::prepare::Work;
use crate::step::measure::resident::process_memory;
use crate::{Result, Setup};

impl Manifest {
    /// Adds a start.
    pub(crate) fn begin(
        &mut self,
        plan: &Plan,
        setup: &Setup,
        stage: Option<String>,
        resumed_from: Option<u64>,
        command: &[String],
    ) {
        self.attempts.push(RunStart {
            start: now(),
            end: None,
            ending: None,
            resumed_from,
            stage,
            command: command.to_vec(),
            ranks: setup.world(),
            strategy: plan.strategies(Strategy::name),
            rounding: rounding(plan),
            binary: Some(self.binary.clone()),
            vector: self.machine.vector.clone(),
            kernels: self.machine.kernels.clone(),
            processes: processes(&setup.rank_hosts()),
            gpus: plan.gpus(),
            mpi: setup
                .processes
                .facts()
                .map(|facts| Mpi { library: facts.library.clone(), file: facts.path.clone() }),
            nccl: setup.processes.nccl().map(|(version, file)| Nccl { version, file }),
            state: None,
        });
    }

    /// The peak of the processor cores that an earlier start measured, if `machine` and the hosts of `setup` are the same. Measured anew it
    /// would be another, and the run's MFU would jump with it.
    fn peak_here(&self, machine: &Machine, setup: &Setup) -> Option<u64> {
        let hosts = |all: &[Process]| all.iter().map(|one| one.host.clone()).collect::<Vec<_>>();
        let here = hosts(&processes(&setup.rank_hosts()));
        let same_hosts = self.attempts.last().is_some_and(|last| hosts(&last.processes) == here);
        let peak = self.machine.peak.filter(|_| setup.processors.is_empty() && same_hosts);
        peak.filter(|_| Machine { peak, ..machine.clone() } == self.machine)
    }

    /// How the run's last start was split, where `plan` is split otherwise: that run says nothing about this plan.
    pub fn split_otherwise(&self, plan: &Plan) -> Option<String> {
        let last = self.attempts.last()?;
        let RunStart { strategy, ranks, rounding, .. } = last;
        let of_split = |key: &str| !key.starts_with("memory.");
        let now = plan.experiment.rounding();
        let keys = differing(rounding, &now).into_iter().filter(|one| of_split(&one.key));
        let keys: Vec<String> = keys.map(|one| format!(", `{}: {}`", one.key, one.was())).collect();
        let keys = keys.concat();
        let on = count(*ranks, "rank");
        if (*ranks, strategy) != (plan.world(), &plan.strategies(Strategy::name)) {
            return Some(format!("`{strategy}` on {on}"));
        }
        (!keys.is_empty()).then(|| format!("`{strategy}` on {on}{keys}"))
    }

    /// Adds to the last start the hash of its state and, of several processes, the memory that each had, as logged last.
    pub(crate) fn set_outcome(&mut self, plan: &Plan, record: &Record) {
        let Some(attempt) = self.attempts.last_mut() else { return };
        attempt.state.clone_from(&record.state);
        let held = process_memory(plan, &record.last);
        for (process, held) in attempt.processes.iter_mut().zip(held) {
            (process.resident, process.planned) = (Some(held.resident), held.planned);
        }
    }
}

/// The settled keys that change the rounding, with the values that they come to: a chunk of more rows than a rank holds is all of its rows.
pub(super) fn rounding(plan: &Plan) -> BTreeMap<String, String> {
    let mut keys = plan.experiment.rounding();
    let chunks = [("loss_chunk", plan.memory.loss_chunk), ("mlp_chunk", plan.memory.mlp_chunk)];
    for (key, chunk) in chunks {
        if let Some(value) = keys.get_mut(&format!("memory.{key}")) {
            *value = chunk.min(plan.rows()).to_string();
        }
    }
    keys
}

/// The manifest of this attempt, with what an earlier one said of the run's beginning if this one resumes.
pub(super) fn manifest(
    plan: &Plan,
    options: &RunOptions,
    setup: &Setup,
    folder: &RunFolder,
    work: &Work,
    resumed_from: Option<u64>,
) -> Result<Manifest> {
    let (data, weights) = (work.fingerprint.clone(), work.weights.clone());
    let mut manifest = Manifest::new(options.cores, &options.yaml, data, weights);
    // A plan for a described core computes with that core's instructions.
    let instructions = plan.experiment.host.core.instructions;
    manifest.machine.vector = Some(instructions.word().to_owned());
    let architecture = setup.processors.first().map(|processor| processor.architecture());
    manifest.machine.kernels = architecture.map(|number| format!("sm_{number}"));
    manifest.held_out = held_out::fingerprint(&plan.experiment, &work.data)?;
    manifest.fork.clone_from(&options.fork);
    manifest.began = options.fork.as_ref().map(|_| work.start.step);
    manifest.reproduces = options.rerun.as_ref().map(|again| again.run.clone());
    manifest.choice = plan.choice.as_ref().map(|chosen| chosen.json.clone());
    // A resumed run has other weights in hand than those that it began with.
    if resumed_from.is_some() {
        UNKNOWN.clone_into(&mut manifest.weights);
    }
    if let Some(earlier) = Manifest::open(&folder.path)? {
        // A run that begins anew may compute in another dtype.
        if resumed_from.is_some() {
            manifest.machine.peak = earlier.peak_here(&manifest.machine, setup);
        }
        manifest.choice = manifest.choice.or(earlier.choice);
        manifest.reproduces = manifest.reproduces.or(earlier.reproduces);
        manifest.attempts = earlier.attempts;
        if resumed_from.is_some() {
            (manifest.began, manifest.weights) = (earlier.began, earlier.weights);
        }
    }
    write_experiment(&folder.path, &options.yaml, &identity::resolved_text(plan))?;
    Ok(manifest)
}

/// The processes of a run; empty where there is only one.
fn processes(hosts: &RankHosts) -> Vec<Process> {
    let process = |(process, host): (usize, &String)| Process {
        host: host.clone(),
        ranks: hosts.ranks_of(process).collect(),
        resident: None,
        planned: None,
    };
    hosts.processes().iter().enumerate().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_say_their_hosts_and_ranks() {
        let hosts: Vec<String> = ["left", "right", "left"].map(str::to_owned).into();
        let found = processes(&RankHosts::new(hosts, 6));
        let process = |host: &str, ranks: [usize; 2]| Process {
            host: host.into(),
            ranks: ranks.into(),
            resident: None,
            planned: None,
        };
        assert_eq!(
            found,
            [process("left", [0, 1]), process("right", [2, 3]), process("left", [4, 5])]
        );
        assert_eq!(processes(&RankHosts::new([], 6)), []);
    }
}
