//! What ranks of several processes send and wait for, by link, and which ranks are stragglers.

use annulus_comm::RankHosts;
use annulus_experiment::tags::{
    BETWEEN_HOSTS_BYTES, BETWEEN_HOSTS_WAITING, STRAGGLER_HOST, STRAGGLER_RANK, WITHIN_HOST_BYTES,
    WITHIN_HOST_WAITING,
};

use crate::sink::Value;

/// By link, within a host and between hosts: the tags of bytes sent and of time waited.
const TAGS: [[&str; 2]; 2] =
    [[WITHIN_HOST_BYTES, WITHIN_HOST_WAITING], [BETWEEN_HOSTS_BYTES, BETWEEN_HOSTS_WAITING]];
/// Ranks differ where their standard deviation is more than this fraction of the mean: clocks are not more precise.
const LEAST: f64 = 1e-6;

/// What one rank sent, waited and computed in the mean step since the last logged one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// By link (within a host, between hosts), bytes that the rank sent in the logged step.
    pub(crate) bytes: [u64; 2],
    /// By link (within a host, between hosts), seconds of waiting.
    pub(crate) waiting: [f64; 2],
    /// Seconds of the step without waiting.
    pub(crate) computing: f64,
}

/// What all ranks and hosts sent, waited and computed, as it is logged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostCosts {
    /// Bytes sent, by link (within a host, between hosts), then by rank.
    bytes: [Vec<u64>; 2],
    waiting: [Vec<f64>; 2],
    /// By tag: what hosts send and wait for, and how many standard deviations ranks and hosts are from the mean.
    numbers: Vec<(String, f64)>,
}

impl HostCosts {
    /// From what every rank spent, by rank, where ranks run on `hosts`.
    pub(crate) fn of(spent: &[Spent], hosts: &RankHosts) -> HostCosts {
        let computing: Vec<f64> = spent.iter().map(|one| one.computing).collect();
        let deviations = deviations(&computing);
        let of_rank = |(rank, z): (usize, &f64)| (format!("{STRAGGLER_RANK}{rank}"), *z);
        let mut numbers: Vec<(String, f64)> = deviations.iter().enumerate().map(of_rank).collect();
        for on in hosts.hosts() {
            let sum =
                |of: &dyn Fn(usize) -> f64| on.ranks.iter().map(|rank| of(*rank)).sum::<f64>();
            let mean = |of: &dyn Fn(usize) -> f64| sum(of) / on.ranks.len() as f64;
            numbers.push((format!("{STRAGGLER_HOST}{}", on.host), mean(&|rank| deviations[rank])));
            for (link, [bytes, waiting]) in TAGS.iter().enumerate() {
                let sent = sum(&|rank| spent[rank].bytes[link] as f64);
                let waited = mean(&|rank| spent[rank].waiting[link]);
                numbers.push((format!("{bytes}/host-{}", on.host), sent));
                numbers.push((format!("{waiting}/host-{}", on.host), waited));
            }
        }
        HostCosts {
            bytes: [0, 1].map(|link| spent.iter().map(|one| one.bytes[link]).collect()),
            waiting: [0, 1].map(|link| spent.iter().map(|one| one.waiting[link]).collect()),
            numbers,
        }
    }

    /// Everything that is logged, by tag.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let of_link = |(link, [bytes, waiting]): (usize, &[&'static str; 2])| {
            let sent = (*bytes, Value::PerRank(&self.bytes[link]));
            [sent, (*waiting, Value::SecondsPerRank(&self.waiting[link]))]
        };
        let links = TAGS.iter().enumerate().flat_map(of_link);
        links.chain(self.numbers.iter().map(|(tag, value)| (tag.as_str(), Value::Number(*value))))
    }
}

/// How many standard deviations every value lies above the mean of all; 0 where they do not differ. Of n values none lies more than `sqrt(n
/// - 1)` above it.
fn deviations(values: &[f64]) -> Vec<f64> {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    let differ = deviation > LEAST * mean.abs();
    values.iter().map(|value| if differ { (value - mean) / deviation } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What is logged of four ranks on two hosts, the last of which is slow.
    fn logged(computing: [f64; 4]) -> BTreeMap<String, Vec<f64>> {
        let hosts: Vec<String> = ["left", "right"].map(str::to_owned).into();
        let spent = computing.map(|computing| Spent {
            bytes: [1, 2],
            waiting: [0.25, 0.5 * computing],
            computing,
        });
        let hosts = HostCosts::of(&spent, &RankHosts::new(hosts, 4));
        let values = hosts.values().map(|(tag, value)| match value {
            Value::Number(number) => (tag.to_owned(), vec![number]),
            value => (tag.to_owned(), value.ranks()),
        });
        values.collect()
    }

    #[test]
    fn the_slow_rank_and_its_host_stand_out() {
        let logged = logged([1.0, 1.0, 1.0, 5.0]);
        // The mean is 2, the standard deviation the root of (1 + 1 + 1 + 9) / 4.
        let unit = 1.0 / 3.0_f64.sqrt();
        for (tag, wanted) in [
            ("stragglers/rank-0", -unit),
            ("stragglers/rank-3", 3.0 * unit),
            ("stragglers/host-left", -unit),
            ("stragglers/host-right", unit),
            ("comm/within_host/bytes/host-left", 2.0),
            ("comm/between_hosts/bytes/host-right", 4.0),
            ("comm/within_host/waiting/host-right", 0.25),
            ("comm/between_hosts/waiting/host-right", 1.5),
        ] {
            assert!((logged[tag][0] - wanted).abs() < 1e-12, "{tag}: {:?}", logged[tag]);
        }
        assert_eq!(logged["comm/between_hosts/bytes"], [2.0; 4]);
        assert_eq!(logged["comm/between_hosts/waiting"], [0.5, 0.5, 0.5, 2.5]);
    }

    #[test]
    fn ranks_that_do_not_differ_are_no_stragglers() {
        for computing in [[0.0; 4], [2.0; 4], [2.0, 2.0, 2.0, 2.0 + 1e-9]] {
            let logged = logged(computing);
            let scores = logged.iter().filter(|(tag, _)| tag.starts_with("stragglers/"));
            assert_eq!(scores.clone().count(), 6);
            assert!(scores.into_iter().all(|(_, value)| value == &[0.0]), "{logged:?}");
        }
    }
}
