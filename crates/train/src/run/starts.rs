//! The starts of a run, as its manifest lists them.

use std::collections::BTreeMap;

use annulus_comm::Places;
use annulus_plan::Plan;
use annulus_sequence::{Strategy, count};

use crate::Setup;
use crate::folder::manifest::{Manifest, Mpi, Nccl, Process, RunStart, differing, now};
use crate::folder::record::Record;
use crate::step::measure::resident::held;

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
            processes: processes(&setup.places()),
            gpus: plan.gpus(),
            mpi: setup
                .processes
                .facts()
                .map(|facts| Mpi { library: facts.library.clone(), file: facts.path.clone() }),
            nccl: setup.processes.nccl().map(|(version, file)| Nccl { version, file }),
            state: None,
        });
    }

    /// How the run's last start was split, where `plan` is split otherwise: that run says nothing about this plan.
    pub fn split_otherwise(&self, plan: &Plan) -> Option<String> {
        let last = self.attempts.last()?;
        let RunStart { strategy, ranks, rounding, .. } = last;
        let of_split = |key: &str| !key.starts_with("memory.");
        let now = plan.experiment.rounding();
        let keys = differing(rounding, &now).into_iter().filter(|(key, ..)| of_split(key));
        let keys: Vec<String> = keys.map(|(key, was, _)| format!(", `{key}: {was}`")).collect();
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
        let held = held(plan, &record.last);
        for (process, held) in attempt.processes.iter_mut().zip(held) {
            (process.resident, process.planned) = (Some(held.resident), Some(held.planned));
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

/// The processes of a run; empty where there is only one.
fn processes(places: &Places) -> Vec<Process> {
    let process = |(process, host): (usize, &String)| Process {
        host: host.clone(),
        ranks: places.ranks_of(process).collect(),
        resident: None,
        planned: None,
    };
    places.processes().iter().enumerate().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_say_their_hosts_and_ranks() {
        let hosts: Vec<String> = ["left", "right", "left"].map(str::to_owned).into();
        let found = processes(&Places::new(hosts, 6));
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
        assert_eq!(processes(&Places::new([], 6)), []);
    }
}
