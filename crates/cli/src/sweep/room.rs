//! Decides how many runs go on at the same time, and on which cores.

use std::fmt;

use annulus_experiment::{AtOnce as Wanted, Sweep};
use annulus_machine::cores;
use annulus_plan::Plan;
use annulus_text::count;
use annulus_train::Exit;

use crate::failure::Failure;

/// Bytes that a process takes besides its ranks' plan: the program, its threads, tokens of its texts.
const OF_A_PROCESS: u64 = 96 << 20;

/// The resources that a run takes on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Planned memory on the device, in the phase that needs the most; `None` if it is unknown.
    pub(super) bytes: Option<u64>,
    /// Memory that the device has.
    there: Option<u64>,
    ranks: usize,
    on_gpu: bool,
}

impl Needs {
    pub(super) fn of(plans: &[Plan]) -> Needs {
        let here = || plans.iter().filter(|plan| plan.experiment.mesh.cluster.is_none());
        let on_gpu = here().any(|plan| plan.experiment.host.gpu_memory.is_some());
        let beside = if on_gpu { 0 } else { OF_A_PROCESS };
        Needs {
            bytes: here().map(Plan::needed).max().map(|bytes| bytes.saturating_add(beside)),
            // `memory.budget` bounds one run, not several together.
            there: here()
                .filter_map(|plan| plan.experiment.host.there())
                .map(|limit| limit.bytes)
                .min(),
            ranks: plans.iter().map(Plan::world).max().unwrap_or(1),
            on_gpu,
        }
    }
}

/// How many runs go on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtOnce {
    pub(super) runs: usize,
    /// Cores of each run.
    pub(super) cores: usize,
}

impl AtOnce {
    /// As many as the sweep says, or as cores and memory allow.
    pub(super) fn of(sweep: &Sweep, needs: &[Needs]) -> Result<AtOnce, Failure> {
        let fit = fit(needs);
        let runs = match sweep.at_once {
            Wanted::Auto if needs.iter().any(|needs| needs.on_gpu) => 1,
            Wanted::Auto => {
                let ranks = needs.iter().map(|needs| needs.ranks).max().unwrap_or(1);
                (cores() / ranks.max(1)).clamp(1, fit)
            }
            Wanted::Runs(runs) if runs.min(needs.len()) > fit => {
                let message =
                    format!("{runs} runs at once do not fit into memory together, but {fit} do");
                let hint = format!("at most {fit}, or `auto`");
                let problem = sweep.places.problem("sweep.at_once", message).hint(hint);
                return Err(Failure { exit: Exit::DoesNotFit, problems: problem.into() });
            }
            Wanted::Runs(runs) => runs,
        };
        let runs = runs.clamp(1, needs.len().max(1));
        Ok(AtOnce { runs, cores: (cores() / runs).max(1) })
    }
}

impl fmt::Display for AtOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, cores) = (self.runs, count(self.cores, "core"));
        if runs == 1 {
            return write!(f, "one at a time, on {cores}");
        }
        write!(f, "{runs} at once, each on {cores}")
    }
}

/// How many of the largest runs fit into memory together.
fn fit(needs: &[Needs]) -> usize {
    let Some(there) = needs.iter().filter_map(|needs| needs.there).min() else {
        return needs.len();
    };
    let mut bytes: Vec<u64> = needs.iter().filter_map(|needs| needs.bytes).collect();
    bytes.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0_u64;
    let fits = |bytes: &&u64| {
        sum = sum.saturating_add(**bytes);
        sum <= there
    };
    // A single run was checked before, with less besides it.
    bytes.iter().take_while(fits).count().max(1)
}

/// Pins this thread, and processes that it starts, to the cores of a slot: a number among the runs that go on at the same time.
pub(super) fn keep_to(slot: usize, at_once: AtOnce) {
    #[cfg(target_os = "linux")]
    if at_once.runs > 1 {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let Ok(all) = sched_getaffinity(None) else { return };
        let ours: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        let mut own = CpuSet::new();
        for core in share(slot, at_once.cores, ours.len()) {
            own.set(ours[core]);
        }
        // If the system refuses, runs share all cores.
        let _ = sched_setaffinity(None, &own);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (slot, at_once);
}

/// The cores of a slot, as indices into the available ones.
#[cfg(any(target_os = "linux", test))]
fn share(slot: usize, cores: usize, there: usize) -> impl Iterator<Item = usize> {
    (0..cores.min(there)).map(move |core| (slot * cores + core) % there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(bytes: u64) -> Needs {
        Needs { bytes: Some(bytes), there: Some(100), ranks: 1, on_gpu: false }
    }

    #[test]
    fn as_many_go_on_as_the_largest_fit() {
        assert_eq!(fit(&[10, 60, 30, 5].map(needs)), 3);
        assert_eq!(fit(&[60, 60].map(needs)), 1);
        assert_eq!(fit(&[10, 10].map(needs)), 2);
        assert_eq!(fit(&[Needs { there: None, ..needs(600) }; 5]), 5, "nobody knows");
    }

    #[test]
    fn slots_have_cores_of_their_own_while_there_are_some() {
        let cores = |slot, own, there| share(slot, own, there).collect::<Vec<_>>();
        assert_eq!([cores(0, 4, 16), cores(3, 4, 16)], [vec![0, 1, 2, 3], vec![12, 13, 14, 15]]);
        assert_eq!([0, 1, 2].map(|slot| cores(slot, 1, 2)), [vec![0], vec![1], vec![0]]);
    }
}
