//! Memory of this machine: by process, its ranks' and what the process takes for itself.

use annulus_experiment::Experiment;
use annulus_text::{count, size, wrapped};

use crate::cost::sum;
use crate::{Plan, RankPlan};

/// Bytes that a process takes before its ranks begin: the program and its libraries as far as they are read, schedules, small blocks,
/// stacks. Measured; a run logs the real number (`memory/base`).
const PROGRAM: u64 = 28 << 20;
/// Bytes that a process takes to join others: MPI's library, and its queues to the processes of the host.
const JOINED: u64 = 32 << 20;
/// The most ranks for which the machine's memory is shown: planning one process per rank takes long, and more ranks belong on several
/// machines.
const SHOWN: usize = 64;

/// Peak memory of one of the processes that share the ranks evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Bytes that its ranks hold at their peak.
    pub ranks: u64,
    /// Bytes that the process takes for itself.
    pub base: u64,
}

impl Process {
    /// Bytes of the process: its ranks' and its own.
    pub fn all(self) -> u64 {
        self.ranks.saturating_add(self.base)
    }
}

impl Plan {
    /// The plan of this experiment with its ranks shared evenly by `processes`, and the settings that it leaves open chosen for them.
    ///
    /// # Panics
    /// When `processes` cannot share the ranks evenly.
    #[must_use]
    pub fn over(&self, processes: usize) -> Plan {
        let mut plan = self.clone();
        (plan.experiment.host.processes, plan.experiment.host.devices) = (processes, 1);
        plan.experiment.host.here = None;
        plan.settle();
        plan
    }

    /// Peak memory of every process: of its ranks as `ranks` says, wherever they hold it, and a typical value for the process itself.
    pub fn processes(&self, ranks: &[RankPlan]) -> Vec<Process> {
        let several = self.experiment.host.processes > 1;
        let base = if several { PROGRAM + JOINED } else { PROGRAM };
        let each = ranks.chunks(self.ranks_of_process());
        let held = each.map(|ranks| ranks.iter().map(|rank| rank.peak));
        held.map(|held| Process { ranks: sum(held), base }).collect()
    }

    /// The memory that this machine needs with all ranks in one process, in the fewest of several, and in one process per rank.
    pub(crate) fn machine(&self) -> String {
        let (world, host) = (self.world(), &self.experiment.host);
        // Ranks on a GPU or on devices of a cluster take none of this machine's memory.
        if world > SHOWN || !host.computes_on_this_cpu() {
            return String::new();
        }
        let open = Experiment { parallel: self.written.1, ..self.experiment.clone() };
        let numbers =
            (1..=world).filter(|number| crate::processes::check_of(&open, *number).is_ok());
        let mut numbers: Vec<usize> = numbers.collect();
        // The first, the second and the last show how it grows.
        let last = numbers.pop().unwrap_or(1);
        numbers.truncate(2);
        numbers.push(last);
        numbers.dedup();
        let lines: String = numbers.into_iter().map(|number| self.line_of(number)).collect();
        let own = format!(
            "  with {} for each rank, {} for a process itself, and {} for MPI where there are several\n",
            count(host.workers, "core"),
            size(PROGRAM),
            size(JOINED)
        );
        format!(
            "{:<17}{:>11}{:>13}\n{lines}{}",
            "this machine",
            "a process",
            "in all",
            wrapped(&own, 2)
        )
    }

    /// The line of so many `processes`: with its settings, where they are chosen otherwise for them.
    fn line_of(&self, processes: usize) -> String {
        let title = count(processes, "process");
        let plan = self.over(processes);
        let processes = plan.processes(&plan.ranks);
        let fullest = processes.iter().map(|process| process.all()).max().unwrap_or(0);
        let all = sum(processes.iter().map(|process| process.all()));
        let other = Some(plan.settings()).filter(|settings| *settings != self.settings());
        let other = other.map_or_else(String::new, |settings| format!("  {settings}"));
        format!("  {title:<15}{:>11}{:>13}{other}\n", size(fullest), size(all))
    }
}
