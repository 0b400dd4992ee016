//! What passes the ports of devices in one hop: into or out of a device, within its node or to other nodes, where a node may share one
//! port.

use std::collections::BTreeSet;

use annulus_sequence::{Hop, Move, Schedule};

use crate::Cluster;

/// The busiest port for messages with the same number of hops to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Busy {
    /// The number of hops that the messages may take.
    pub(crate) hops: usize,
    /// Whether the port is for traffic within the node.
    pub(crate) inside: bool,
    /// Seconds beyond those of messages that may take fewer hops.
    pub(crate) seconds: f64,
    /// Latency after which the last byte has arrived.
    pub(crate) latency: f64,
}

/// The traffic of the ranks that were looked at.
pub(crate) struct Ports<'a> {
    schedule: &'a Schedule,
    cluster: &'a Cluster,
    /// The number of the hop.
    index: usize,
    flows: Vec<Flow>,
    /// Nodes whose ranks share a port.
    nodes: BTreeSet<usize>,
}

/// Bytes through one port, of messages that may take as many hops over links of one level.
#[derive(Clone, Copy)]
struct Flow {
    /// The device, or the node whose devices share a link.
    place: usize,
    inside: bool,
    out: bool,
    hops: usize,
    level: usize,
    bytes: u64,
}

impl<'a> Ports<'a> {
    pub(crate) fn new(schedule: &'a Schedule, cluster: &'a Cluster, index: usize) -> Ports<'a> {
        Ports { schedule, cluster, index, flows: Vec::new(), nodes: BTreeSet::new() }
    }

    /// Adds what a rank sends and receives; where its node shares a port, what all ranks of the node do.
    pub(crate) fn take(&mut self, rank: usize, hop: &Hop, bytes: &impl Fn(&Move) -> u64) {
        if !self.cluster.shared {
            return self.add(rank, hop, bytes);
        }
        let node = self.cluster.node_of(rank);
        if self.nodes.insert(node) {
            for rank in self.cluster.devices_of(node).filter(|rank| *rank < self.schedule.world()) {
                self.add(rank, &self.schedule.hop(rank, self.index), bytes);
            }
        }
    }

    fn add(&mut self, rank: usize, hop: &Hop, bytes: &impl Fn(&Move) -> u64) {
        let shared = self.cluster.shared.then(|| self.cluster.node_of(rank));
        for (out, moves) in [(true, &hop.sends), (false, &hop.receives)] {
            for moved in moves {
                let level = self.cluster.level(moved.from, moved.to);
                let inside = level == 0;
                let place = shared.filter(|_| !inside).unwrap_or(rank);
                let (hops, bytes) = (moved.hops, bytes(moved));
                self.flow(Flow { place, inside, out, hops, level, bytes });
            }
        }
    }

    fn flow(&mut self, flow: Flow) {
        let key = |one: &Flow| (one.place, one.inside, one.out, one.hops, one.level);
        // A rank's last flow is often the one.
        match self.flows.iter_mut().rev().find(|one| key(one) == key(&flow)) {
            Some(known) => known.bytes += flow.bytes,
            None => self.flows.push(flow),
        }
    }

    /// The busiest ports, ordered by how many hops messages may take: what is due first goes first.
    pub(crate) fn busiest(&self) -> Vec<Busy> {
        let mut kinds: Vec<(usize, bool)> =
            self.flows.iter().map(|flow| (flow.hops, flow.inside)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let mut before = [0.0; 2];
        let of_kind = |(hops, inside): (usize, bool)| {
            let until = || self.flows.iter().filter(move |f| f.inside == inside && f.hops <= hops);
            let of_port = |port: &Flow| -> f64 {
                let same = until().filter(|f| (f.place, f.out) == (port.place, port.out));
                same.map(|f| f.bytes as f64 / self.cluster.link_of(f.level).bandwidth).sum()
            };
            let busiest = until().map(of_port).fold(0.0, f64::max);
            let due = until().filter(|flow| flow.hops == hops);
            let latency = due.map(|flow| self.cluster.link_of(flow.level).latency);
            let latency = latency.fold(0.0, f64::max);
            let before = &mut before[usize::from(inside)];
            let seconds = busiest - std::mem::replace(before, busiest);
            Busy { hops, inside, seconds, latency }
        };
        kinds.into_iter().map(of_kind).collect()
    }
}
