//! Resident memory of processes, beside what their ranks hold and what they were planned to hold.

use std::collections::BTreeMap;

use annulus_comm::RankHosts;
use annulus_experiment::tags::{BASE_OF_PROCESS, RESIDENT_OF_HOST, RESIDENT_OF_PROCESS};
use annulus_machine::Resident;
use annulus_plan::{Plan, Process, RankPlan};

use crate::setup::pages::return_what_was_freed;

/// Resident memory of a process, bytes; the same for all its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfProcess {
    /// What the process took for itself before its ranks began.
    pub(crate) base: u64,
    /// The most that the process has had since then.
    pub(crate) peak: u64,
}

impl OfProcess {
    /// The memory of this process before its ranks begin. Its peak until then, of reading and encoding the data, is none of theirs: where
    /// the system allows, it is forgotten.
    pub(crate) fn before() -> OfProcess {
        // Pages that an earlier phase freed will be used again, by ranks whose memory is planned: they must not count as the base.
        return_what_was_freed();
        Resident::forget_peak();
        let now = Resident::here().map_or(0, |resident| resident.now);
        OfProcess { base: now, peak: now }
    }

    /// The memory with the process's peak until now.
    pub(crate) fn now(self) -> OfProcess {
        OfProcess { peak: Resident::here().map_or(0, |resident| resident.peak), ..self }
    }

    pub(crate) fn counts(self) -> [i64; 2] {
        [self.base as i64, self.peak as i64]
    }

    /// The inverse of [`OfProcess::counts`].
    pub(crate) fn of([base, peak]: &[i64; 2]) -> OfProcess {
        OfProcess { base: *base as u64, peak: *peak as u64 }
    }
}

/// What is logged, with its tags: of every process, and of every host where there are several processes.
pub(crate) fn logged(by_rank: &[OfProcess], hosts: &RankHosts) -> Vec<(String, f64)> {
    let processes = hosts.processes().len().max(1);
    let of_process = |process: usize| {
        let ranks = by_rank[hosts.ranks_of(process)].iter();
        // Ranks of a process measure one after another: the largest counts.
        ranks.fold(OfProcess::default(), |all, one| OfProcess {
            base: all.base.max(one.base),
            peak: all.peak.max(one.peak),
        })
    };
    let all: Vec<OfProcess> = (0..processes).map(of_process).collect();
    // Nothing is logged where the system does not say.
    if all.iter().any(|one| one.peak == 0) {
        return Vec::new();
    }
    let mut logged = Vec::new();
    for (process, one) in all.iter().enumerate() {
        logged.push((format!("{BASE_OF_PROCESS}{process}"), one.base as f64));
        logged.push((format!("{RESIDENT_OF_PROCESS}{process}"), one.peak as f64));
    }
    for on in hosts.hosts() {
        let here = |(process, host): (usize, &String)| (host == on.host).then(|| all[process].peak);
        let sum: u64 = hosts.processes().iter().enumerate().filter_map(here).sum();
        logged.push((format!("{RESIDENT_OF_HOST}{}", on.host), sum as f64));
    }
    logged
}

/// Resident memory of one process, measured and planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The most bytes that the process has had in memory since its ranks began.
    pub resident: u64,
    /// Bytes that its ranks were planned to hold, and those that it took before they began. `None`: its ranks hold theirs on GPUs, and what
    /// a process of such ranks takes of the host is not planned.
    pub planned: Option<u64>,
    /// Bytes that the process took before its ranks began.
    pub base: u64,
}

/// Memory of every process, from what a run logged last; empty where the system does not say.
pub fn process_memory(plan: &Plan, last: &BTreeMap<String, f64>) -> Vec<ProcessMemory> {
    process_memory_of(plan, &plan.with_cores(annulus_machine::cores()), last)
}

/// Memory of every process, of ranks that were planned as `ranks` has it; empty where the system does not say.
pub(crate) fn process_memory_of(
    plan: &Plan,
    ranks: &[RankPlan],
    last: &BTreeMap<String, f64>,
) -> Vec<ProcessMemory> {
    let on_host = plan.experiment.host.computes_on_this_cpu();
    let of_process = |(process, planned): (usize, Process)| {
        let at = |tag: &str| last.get(&format!("{tag}{process}")).map(|bytes| *bytes as u64);
        let (resident, base) = (at(RESIDENT_OF_PROCESS)?, at(BASE_OF_PROCESS)?);
        let planned = on_host.then(|| Process { base, ..planned }.all());
        Some(ProcessMemory { resident, planned, base })
    };
    plan.processes(ranks).into_iter().enumerate().filter_map(of_process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_process_had_before_its_ranks_began_is_no_peak_of_theirs() {
        const EARLIER: usize = 256 << 20;
        drop(std::hint::black_box(vec![1u8; EARLIER]));
        let earlier = Resident::here().unwrap().peak;
        Resident::forget_peak();
        if Resident::here().unwrap().peak == earlier {
            println!("skipped: this system does not let a process forget its peak");
            return;
        }
        drop(std::hint::black_box(vec![1u8; EARLIER]));
        let before = OfProcess::before();
        let own = before.now();
        // Other tests of this process run meanwhile.
        assert!(own.peak < before.base + EARLIER as u64 / 2, "{before:?} {own:?}");
    }

    #[test]
    fn processes_are_logged_and_summed_by_host() {
        let hosts: Vec<String> = ["left", "left", "right"].map(str::to_owned).into();
        let of = |peak| OfProcess { base: 1, peak };
        let ranks = [5, 6, 7, 7, 9, 8].map(of);
        let found = logged(&ranks, &RankHosts::new(hosts, 6));
        let at = |tag: &str| found.iter().find(|(known, _)| known == tag).map(|(_, value)| *value);
        assert_eq!(at("memory/resident/process-0"), Some(6.0));
        assert_eq!(at("memory/resident/host-left"), Some(13.0));
        assert_eq!(at("memory/resident/host-right"), Some(9.0));
        assert_eq!(at("memory/base/process-2"), Some(1.0));
        let alone = logged(&ranks, &RankHosts::new([], 6));
        assert_eq!(alone.len(), 2, "{alone:?}");
        assert_eq!(logged(&[of(0)], &RankHosts::new([], 1)), []);
    }
}
