//! What the machine holds: its processes, each with its ranks and with what it takes for itself.

use crate::report::count;
use crate::{Plan, RankPlan, size, wrapped};

/// What a process takes before its ranks begin: the program and its libraries as far as they are read, schedules, small blocks,
/// stacks. Measured of this program; a run says what it is in truth (`memory/base`).
const PROGRAM: u64 = 28 << 20;
/// What joins it to others: MPI's library with its own memory and its queues between processes of a host.
const JOINED: u64 = 32 << 20;
/// The most ranks of which it is shown: a process for each plays each for itself, and so many are of several machines.
const SHOWN: usize = 64;

/// One of the processes that share the ranks evenly, at its fullest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// What its ranks hold.
    pub ranks: u64,
    /// What it takes for itself.
    pub base: u64,
}

impl Process {
    /// Both.
    pub fn all(self) -> u64 {
        self.ranks.saturating_add(self.base)
    }
}

impl Plan {
    /// The same experiment where so many processes share the ranks.
    ///
    /// # Panics
    /// When they cannot share them evenly.
    #[must_use]
    pub fn over(&self, processes: usize) -> Plan {
        let mut plan = self.clone();
        (plan.experiment.host.processes, plan.experiment.host.devices) = (processes, 1);
        plan.experiment.host.here = None;
        plan.ranks = plan.rank_plans(&plan.kinds());
        plan
    }

    /// What every process holds: its ranks what `ranks` says, and the process itself what is typical.
    pub fn processes(&self, ranks: &[RankPlan]) -> Vec<Process> {
        let several = self.experiment.host.processes > 1;
        let base = if several { PROGRAM + JOINED } else { PROGRAM };
        let each = ranks.chunks(self.ranks_of_process());
        let held = each.map(|ranks| ranks.iter().map(|rank| rank.together));
        held.map(|held| Process { ranks: held.fold(0, u64::saturating_add), base }).collect()
    }

    /// What this machine would hold with all ranks on it: in one process, in the fewest of several, and in one for each rank.
    pub(crate) fn machine(&self) -> String {
        let (world, host) = (self.world(), &self.experiment.host);
        // Ranks on a GPU, or on devices of their own, are not this machine's.
        if world > SHOWN || host.device.is_some() || host.apart.is_some() {
            return String::new();
        }
        let numbers = (1..=world)
            .filter(|number| crate::processes::check_of(&self.experiment, *number).is_ok());
        let mut numbers: Vec<usize> = numbers.collect();
        // The first, the second and the last say how it grows.
        let last = numbers.pop().unwrap_or(1);
        numbers.truncate(2);
        numbers.push(last);
        numbers.dedup();
        let line = |number: usize| {
            let plan = self.over(number);
            let processes = plan.processes(&plan.ranks);
            let fullest = processes.iter().map(|process| process.all()).max().unwrap_or(0);
            let all = processes.iter().fold(0_u64, |sum, one| sum.saturating_add(one.all()));
            let noun = if number == 1 { "process" } else { "processes" };
            let title = format!("{number} {noun}");
            format!("  {title:<15}{:>11}{:>13}\n", size(fullest), size(all))
        };
        let lines: String = numbers.into_iter().map(line).collect();
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
}
