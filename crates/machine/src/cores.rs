//! The cores that processes and ranks share.

use std::sync::OnceLock;
use std::{fs, thread};

/// The cores of this machine that the job's processes have together, once these are known.
static TOGETHER: OnceLock<usize> = OnceLock::new();

/// The number of cores that this process may use; once it has been joined to others ([`are_shared`]), those that the processes on its
/// machine have together.
pub fn cores() -> usize {
    TOGETHER.get().copied().unwrap_or_else(own)
}

/// Asked once: the system looks through the files of control groups for it, which takes longer than many a document is encoded.
fn own() -> usize {
    static OWN: OnceLock<usize> = OnceLock::new();
    *OWN.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// A rank's number of cores, where `ranks` share `cores`.
pub fn share(cores: usize, ranks: usize) -> usize {
    (cores / ranks.max(1)).max(1)
}

/// The processors that the system lets this process run on, as Linux lists them (`0-3,8`); empty where unknown.
pub fn processors() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

/// Tells that the processes on this machine may run on the processors `of_all`: a launcher gives each its own, or all of them to all.
/// Counts once, before ranks begin.
pub fn are_shared(own_processors: &str, of_all: &[&str]) {
    // A second call knows nothing new.
    let _ = TOGETHER.set(together(own(), own_processors, of_all));
}

/// All processes' cores, where each may use `own`: its share among the processes with the same processors, times all.
fn together(own: usize, own_processors: &str, of_all: &[&str]) -> usize {
    let beside = of_all.iter().filter(|other| overlap(own_processors, other)).count();
    own * of_all.len() / beside.max(1)
}

/// Whether two lists have a processor in common; an unknown list may have any.
fn overlap(a: &str, b: &str) -> bool {
    let (Some(a), Some(b)) = (ranges(a), ranges(b)) else { return true };
    a.iter().any(|(first, last)| b.iter().any(|(from, to)| first <= to && from <= last))
}

fn ranges(list: &str) -> Option<Vec<(usize, usize)>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    list.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_once_however_a_launcher_gives_them() {
        let each = |own: usize, all: &[&str]| share(together(own, all[0], all), all.len());
        assert_eq!(each(16, &["0-15", "0-15"]), 8, "all to all");
        assert_eq!(each(8, &["0-7", "8-15"]), 8, "its own to each");
        assert_eq!(each(4, &["0-3,8-11", "4-7", "0-3,8-11", "4-7"]), 2, "two sockets, two each");
        assert_eq!(each(4, &["", ""]), 2, "nobody knows");
        assert_eq!(each(1, &["0", "0", "0"]), 1, "more processes than cores");
    }

    /// However often it is asked, the system is asked once: a thread that may use fewer would have another answer.
    #[cfg(target_os = "linux")]
    #[test]
    fn cores_are_counted_once() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let counted = cores();
        let asked = thread::spawn(|| {
            let all = sched_getaffinity(None).expect("the system says");
            let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).expect("a core");
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).expect("fewer cores are always given");
            cores()
        });
        assert_eq!(asked.join().expect("no panic"), counted);
    }

    #[test]
    fn this_process_runs_on_processors_that_it_shares_with_itself() {
        let own = processors();
        assert!(overlap(&own, &own));
        if cfg!(target_os = "linux") {
            assert!(ranges(&own).is_some_and(|ranges| !ranges.is_empty()), "{own}");
        }
    }
}
