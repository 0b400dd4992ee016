//! Where ranks run: which process has a rank, and which host has a process.

use std::ops::Range;
use std::sync::Arc;

/// Which ranks run in which processes on which hosts: processes share ranks evenly, and neighbouring ranks are in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankHosts {
    /// The host of every process; empty where there is one process, whose host does not matter.
    hosts: Arc<[String]>,
    ranks: usize,
}

/// A host, and the ranks on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnHost<'a> {
    /// Its name.
    pub host: &'a str,
    /// The ranks on it, in order.
    pub ranks: Vec<usize>,
}

impl RankHosts {
    /// The places of `ranks` ranks in processes, of which `hosts` has the names of the hosts; empty: one process. Their number must
    /// divide that of the ranks.
    pub fn new(hosts: impl Into<Arc<[String]>>, ranks: usize) -> RankHosts {
        let hosts = hosts.into();
        assert!(ranks.is_multiple_of(hosts.len().max(1)), "processes share ranks evenly");
        RankHosts { hosts, ranks }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The name of every process's host; empty where there is only one process.
    pub fn processes(&self) -> &[String] {
        &self.hosts
    }

    /// The process of a rank.
    pub fn process_of(&self, rank: usize) -> usize {
        rank * self.hosts.len() / self.ranks.max(1)
    }

    /// The host of a rank; `None` where there is only one process.
    pub fn host_of(&self, rank: usize) -> Option<&str> {
        self.hosts.get(self.process_of(rank)).map(String::as_str)
    }

    /// The ranks of a process.
    pub fn ranks_of(&self, process: usize) -> Range<usize> {
        let share = self.ranks / self.hosts.len().max(1);
        process * share..(process + 1) * share
    }

    /// Whether two ranks are on different hosts. Hosts are told apart by their names.
    pub fn are_apart(&self, one: usize, other: usize) -> bool {
        self.host_of(one) != self.host_of(other)
    }

    /// The hosts, in the order of their first ranks; empty where there is only one process.
    pub fn hosts(&self) -> Vec<OnHost<'_>> {
        let mut hosts: Vec<OnHost<'_>> = Vec::new();
        for (process, host) in self.hosts.iter().enumerate() {
            let ranks = self.ranks_of(process);
            match hosts.iter_mut().find(|known| known.host == host) {
                Some(known) => known.ranks.extend(ranks),
                None => hosts.push(OnHost { host, ranks: ranks.collect() }),
            }
        }
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shared_out_in_order() {
        let hosts: Vec<String> = ["a", "b", "a"].map(str::to_owned).into();
        let hosts = RankHosts::new(hosts, 6);
        assert_eq!(
            (0..6).map(|rank| hosts.process_of(rank)).collect::<Vec<_>>(),
            [0, 0, 1, 1, 2, 2]
        );
        assert_eq!((hosts.ranks_of(1), hosts.host_of(3)), (2..4, Some("b")));
        let apart = |one, other| hosts.are_apart(one, other);
        assert_eq!([apart(0, 1), apart(1, 2), apart(0, 5)], [false, true, false]);
        let on = |host, ranks: &[usize]| OnHost { host, ranks: ranks.to_vec() };
        assert_eq!(hosts.hosts(), [on("a", &[0, 1, 4, 5]), on("b", &[2, 3])]);
    }

    #[test]
    fn threads_of_one_process_are_not_apart() {
        let hosts = RankHosts::new([], 4);
        assert_eq!((hosts.process_of(3), hosts.host_of(3), hosts.ranks_of(0)), (0, None, 0..4));
        assert!(!hosts.are_apart(0, 3) && hosts.hosts().is_empty());
    }
}
