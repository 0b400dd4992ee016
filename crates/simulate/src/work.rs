//! A pass of one attention on a cluster: of every rank, or with more than 256 ranks of representatives of those that are alike.
//!
//! With representatives, all ranks begin a hop together, once the slowest has ended the last one: a hop takes as long as the rank with most
//! to compute, or until the busiest port has sent or received what is due. This equals the walk of every rank where every hop has the same
//! slowest rank, or all ranks have as much to do; elsewhere it is longer, as ranks cannot run ahead of each other.

use std::collections::BTreeSet;

use annulus_sequence::{AlikeRanks, Hop, Move, Pass, Schedule};

use crate::load::Counted;
use crate::ports::{Busy, Ports};
use crate::walk::{latest, walk};
use crate::{Cluster, Load, Walk};

/// The most ranks of which every one is walked.
const EVERY: usize = 256;
/// The most slow devices that are looked at beside representative ranks, the slowest first.
const SLOW: usize = 8;

/// What the ranks do in one pass.
pub(crate) enum Work {
    /// The load of every rank.
    Every(Load),
    /// The load of representative ranks.
    Sampled(Sampled),
}

/// What ranks that represent all others do, by hop.
pub(crate) struct Sampled {
    pass: Pass,
    world: usize,
    hops: Vec<Pace>,
}

/// The cost of one hop.
#[derive(Default)]
struct Pace {
    /// Operations of the rank that has most, and of the mean rank.
    most: f64,
    mean: f64,
    /// Operations of ranks on a slow device, in some replica.
    slow: Vec<(usize, f64)>,
    busy: Vec<Busy>,
    /// Bytes that the rank that sends most sends within its node, and to other nodes.
    sent: [u64; 2],
}

impl Work {
    /// The work of `schedule` on `cluster`.
    pub(crate) fn of(schedule: &Schedule, counted: &mut Counted, cluster: &Cluster) -> Work {
        if schedule.world() <= EVERY {
            Work::Every(counted.load(schedule))
        } else {
            Work::Sampled(Sampled::of(schedule, counted, cluster))
        }
    }

    /// Walks this work as [`walk`] walks a load.
    pub(crate) fn walk(&self, cluster: &Cluster, start: &[f64]) -> Walk {
        match self {
            Work::Every(load) => walk(load, cluster, start),
            Work::Sampled(sampled) => sampled.walk(cluster, start),
        }
    }

    /// Seconds until the last rank is done, with all starting at the same time.
    pub(crate) fn seconds(&self, cluster: &Cluster) -> f64 {
        self.walk(cluster, &vec![0.0; self.world()]).end()
    }

    /// Operations of the slowest rank of each hop, and of the mean rank, summed over hops.
    pub(crate) fn slowest_and_mean(&self) -> [f64; 2] {
        let of_hop = |hop: usize| match self {
            Work::Sampled(Sampled { hops, .. }) => [hops[hop].most, hops[hop].mean],
            Work::Every(load) => {
                let operations: Vec<f64> =
                    load.ranks.iter().map(|steps| steps[hop].operations).collect();
                [latest(&operations), operations.iter().sum::<f64>() / load.world() as f64]
            }
        };
        (0..self.hops()).map(of_hop).fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])
    }

    /// By rank, bytes sent within its node and to other nodes. Representative ranks give those of the rank that sends most in every hop.
    pub(crate) fn sent(&self, cluster: &Cluster) -> Vec<[u64; 2]> {
        match self {
            Work::Every(load) => (0..load.world()).map(|rank| load.sent(rank, cluster)).collect(),
            Work::Sampled(Sampled { world, hops, .. }) => {
                let most = hops.iter().map(|pace| pace.sent).fold([0; 2], added);
                vec![most; *world]
            }
        }
    }

    /// Seconds for which the busiest port of a device, or of a node whose devices share it, is busy: within nodes, and between them.
    /// Representative ranks give those of the port that is busiest in every hop.
    pub(crate) fn busy(&self, cluster: &Cluster) -> [f64; 2] {
        match self {
            Work::Every(load) => load.busy(cluster),
            Work::Sampled(_) if cluster.is_instant() => [0.0; 2],
            Work::Sampled(Sampled { hops, .. }) => [true, false].map(|inside| {
                let all = hops.iter().flat_map(|pace| &pace.busy);
                all.filter(|busy| busy.inside == inside).map(|busy| busy.seconds).sum()
            }),
        }
    }

    fn world(&self) -> usize {
        match self {
            Work::Every(load) => load.world(),
            Work::Sampled(sampled) => sampled.world,
        }
    }

    fn hops(&self) -> usize {
        match self {
            Work::Every(load) => load.hops(),
            Work::Sampled(sampled) => sampled.hops.len(),
        }
    }
}

impl Sampled {
    fn of(schedule: &Schedule, counted: &mut Counted, cluster: &Cluster) -> Sampled {
        let (pass, world) = (schedule.pass, schedule.world());
        let mut sampling = Sampling { schedule, counted, cluster, slow: slow(cluster, world) };
        let hops = (0..schedule.hops()).map(|index| sampling.pace(index)).collect();
        Sampled { pass, world, hops }
    }

    fn walk(&self, cluster: &Cluster, start: &[f64]) -> Walk {
        let begin = latest(start);
        let (mut clock, mut computing) = (begin, 0.0);
        let mut free = [begin; 2];
        let mut due = vec![0.0_f64; self.hops.len()];
        for (hop, pace) in self.hops.iter().enumerate() {
            for busy in pace.busy.iter().filter(|_| !cluster.is_instant()) {
                let free = &mut free[usize::from(busy.inside)];
                *free = free.max(clock) + busy.seconds;
                let last = (hop + busy.hops).clamp(1, due.len()) - 1;
                due[last] = due[last].max(*free + busy.latency);
            }
            let speed = cluster.rates.attention(self.pass);
            let slowed =
                |(rank, operations): &(usize, f64)| operations * cluster.slowdown_of(*rank);
            let slowest = pace.slow.iter().map(slowed).fold(pace.most, f64::max);
            // With several nodes it is unknown here which ranks belong to which.
            let is_helped = cluster.helping && cluster.nodes == 1;
            let slowest = if is_helped { pace.mean } else { slowest };
            computing += pace.mean / speed;
            clock = (clock + slowest / speed).max(due[hop]);
        }
        let all = |seconds: f64| vec![seconds; self.world];
        let waiting = start.iter().map(|start| clock - start - computing).collect();
        Walk { finish: all(clock), computing: all(computing), waiting }
    }
}

/// The sums, element by element.
pub(crate) fn added(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [0, 1].map(|place| one[place].saturating_add(other[place]))
}

/// The places of the slowest devices, in replicas of `world` ranks.
fn slow(cluster: &Cluster, world: usize) -> Vec<usize> {
    let mut slow: Vec<(&usize, &f64)> = cluster.slowdown.iter().collect();
    slow.sort_by(|a, b| b.1.total_cmp(a.1));
    let slow = slow.into_iter().take(SLOW);
    slow.filter_map(|(device, _)| cluster.place_of_slow(*device, world)).collect()
}

/// Samples of a schedule.
struct Sampling<'a> {
    schedule: &'a Schedule,
    counted: &'a mut Counted,
    cluster: &'a Cluster,
    slow: Vec<usize>,
}

impl Sampling<'_> {
    fn pace(&mut self, index: usize) -> Pace {
        let mut pace = Pace::default();
        let mut ports = Ports::new(self.schedule, self.cluster, index);
        let world = self.schedule.world() as f64;
        for group in self.schedule.groups(index) {
            let samples = group.samples();
            let hops: Vec<Hop> =
                samples.iter().map(|rank| self.schedule.hop(*rank, index)).collect();
            let operations: Vec<f64> =
                hops.iter().map(|hop| self.counted.operations_of(self.schedule, hop)).collect();
            pace.most = pace.most.max(latest(&operations));
            pace.mean += sum(&operations, group.ranks().len()) / world;
            if hops.iter().any(|hop: &Hop| !hop.sends.is_empty() || !hop.receives.is_empty()) {
                let bytes = |moved: &Move| self.counted.bytes(moved, self.schedule.pass);
                let mut take = |rank: usize, hop: &Hop| {
                    ports.take(rank, hop, &bytes);
                    let mut sent = [0; 2];
                    for moved in &hop.sends {
                        let level = self.cluster.level(moved.from, moved.to);
                        sent[level.min(1)] += bytes(moved);
                    }
                    pace.sent = [0, 1].map(|place| pace.sent[place].max(sent[place]));
                };
                samples.iter().zip(&hops).for_each(|(rank, hop)| take(*rank, hop));
                for rank in self.edges(&group).into_iter().filter(|rank| !samples.contains(rank)) {
                    take(rank, &self.schedule.hop(rank, index));
                }
            }
        }
        for rank in self.slow.clone() {
            let hop = self.schedule.hop(rank, index);
            pace.slow.push((rank, self.counted.operations_of(self.schedule, &hop)));
        }
        pace.busy = ports.busiest();
        pace
    }

    /// Ranks of a group on both sides of the edges of nodes and node groups.
    fn edges(&self, group: &AlikeRanks) -> BTreeSet<usize> {
        let ranks = group.ranks();
        let (first, step) = (group.first(), group.step());
        let past = first + step * ranks.len();
        let of_border = |devices: usize| {
            let border = self.cluster.first_beside(past - 1, devices);
            let after = border.checked_sub(first).map(|ahead| first + ahead / step * step);
            let before = after.and_then(|after| after.checked_sub(step));
            after.into_iter().chain(before.filter(|before| *before >= first))
        };
        let edges = self.cluster.groups().flat_map(of_border);
        edges.filter(|rank| *rank < past).collect()
    }
}

/// The sum over `ranks` ranks, from a sample of them: of the first, the middle and the last rank in a row, between which ranks are, on
/// average, as the middle one, or of some that stand for as many ranks each.
fn sum(operations: &[f64], ranks: usize) -> f64 {
    match operations {
        [first, middle, last] => first + middle * (ranks - 2) as f64 + last,
        few => few.iter().sum::<f64>() * ranks as f64 / few.len() as f64,
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::{BlockShape, Exchange, Heads, Mask, Route, Rule, Strategy, Wire};

    use annulus_experiment::Replica;

    use super::*;
    use crate::{Level, Link};

    /// Nodes of four in rails of four nodes, `speed` operations per second.
    fn cluster(speed: f64) -> Cluster {
        let mut cluster = Cluster::threads(4, 4);
        (cluster.nodes, cluster.helping) = (24, false);
        (cluster.rates.forward, cluster.rates.backward) = (speed, speed);
        cluster.inside = Link { bandwidth: 4e9, latency: 1e-6 };
        cluster.between = Link { bandwidth: 1e9, latency: 5e-6 };
        let link = Link { bandwidth: 5e8, latency: 9e-6 };
        cluster.levels = vec![Level { name: String::from("rail"), devices: 16, link }];
        cluster
    }

    /// Seconds of a pass of all ranks, and of ranks that stand for all.
    fn both(schedule: &Schedule, cluster: &Cluster) -> [f64; 2] {
        let block = BlockShape { batch: 1, head_dim: 64, wire: Wire::new(2, 4), order_free: false };
        let mut counted = Counted::new(block, 1);
        let every = Work::Every(counted.load(schedule));
        let sampled = Work::Sampled(Sampled::of(schedule, &mut counted, cluster));
        let ([most, mean], found) = (every.slowest_and_mean(), sampled.slowest_and_mean());
        let near = (found[0] / most - 1.0).abs() < 1e-9 && (found[1] / mean - 1.0).abs() < 0.01;
        assert!(near, "{}: {found:?}, not {most} and {mean}", schedule.strategy);
        [&every, &sampled].map(|work| work.seconds(cluster))
    }

    /// Bound by computing, by both, by links. Under a window ranks of zigzag chunks run ahead of each
    /// other; of those that stand for all none does.
    #[test]
    fn ranks_that_stand_for_all_take_as_long() {
        let strategies = [
            Strategy::Ring,
            Strategy::STRIPED,
            Strategy::MEGATRON,
            Strategy::Megatron { exchange: Exchange::Both { shape: Some([4, 16]) } },
            Strategy::Usp { shape: Some([8, 8]) },
            Strategy::DoubleRing { shape: Some([16, 4]) },
            Strategy::ALL_GATHER,
            Strategy::LiRing,
        ];
        let window = Mask::causal().and(Rule::Window(700));
        for (mask, most) in [(Mask::causal(), 1.0001), (Mask::full(), 1.0001), (window, 1.35)] {
            for (strategy, speed) in
                strategies.into_iter().flat_map(|one| [1e9, 3e10, 1e15].map(|speed| (one, speed)))
            {
                let split = strategy.split(&mask, 64 * 256, 64, Heads { query: 8, key_value: 4 });
                let split = split.expect("it splits");
                let forward = strategy.forward(&split).expect("it runs");
                let backward = strategy.backward(&split, Route::default()).expect("it runs");
                for schedule in [forward, backward] {
                    let [every, sampled] = both(&schedule, &cluster(speed));
                    let times = sampled / every;
                    let case = format!("{strategy:?}, {:?}, {mask:?}, {speed:e}", schedule.pass);
                    assert!(times > 0.9999 && times < most, "{case}: {times} times as long");
                }
            }
        }
    }

    /// Two ranks stand for all of a double ring of two stations: their mean is that of all, which `both` checks.
    #[test]
    fn two_stations_stand_for_all_ranks_in_them() {
        let strategy = Strategy::DoubleRing { shape: Some([2, 32]) };
        let split = strategy.split(&Mask::causal(), 64 * 256, 64, Heads::equal(4));
        let schedule = strategy.forward(&split.expect("it splits")).expect("it runs");
        let [every, sampled] = both(&schedule, &cluster(1e9));
        assert!((sampled / every - 1.0).abs() < 1e-4, "{sampled} for {every} seconds");
    }

    /// Of ranks that are two apart, nodes and rails have half as many, and half of a link that a node's devices share.
    #[test]
    fn ranks_that_are_apart_take_as_long_as_neighbours_in_smaller_nodes() {
        for (shared, speed) in [(false, 1e9), (false, 1e15), (true, 1e15)] {
            let wide = Cluster { nodes: 48, shared, ..cluster(speed) };
            let mut small = Cluster { devices_per_node: 2, ..wide.clone() };
            small.levels[0].devices /= 2;
            if shared {
                small.between.bandwidth /= 2.0;
                small.levels[0].link.bandwidth /= 2.0;
            }
            let apart = wide.seeing(Replica { first: 1, step: 2, places: 64 });
            for strategy in [Strategy::STRIPED, Strategy::Usp { shape: Some([4, 16]) }] {
                let split = strategy.split(&Mask::causal(), 64 * 256, 64, Heads::equal(4));
                let schedule = strategy.forward(&split.expect("it splits")).expect("it runs");
                assert_eq!(both(&schedule, &apart), both(&schedule, &small), "{strategy:?}");
                // A ring is as slow as its slowest link, in nodes of any size.
                let may_be_alike = strategy == Strategy::STRIPED || speed < 1e10;
                assert!(may_be_alike || both(&schedule, &apart) != both(&schedule, &wide));
            }
        }
    }

    #[test]
    fn a_slow_device_slows_those_that_stand_for_all() {
        let split = Strategy::STRIPED.split(&Mask::causal(), 64 * 256, 64, Heads::equal(4));
        let schedule = Strategy::STRIPED.forward(&split.expect("it splits")).expect("it runs");
        let mut slow = cluster(1e9);
        slow.slowdown.insert(21, 3.0);
        let [[every, sampled], [_, even]] = [&slow, &cluster(1e9)].map(|one| both(&schedule, one));
        assert!((sampled / every - 1.0).abs() < 0.02 && sampled > 2.9 * even, "{sampled} {every}");
        let shared = Cluster { shared: true, ..cluster(1e15) };
        let [every, sampled] = both(&schedule, &shared);
        assert!((sampled / every - 1.0).abs() < 1e-9, "{sampled} {every}");
    }
}
