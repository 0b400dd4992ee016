//! Walks a load over a cluster, hop by hop: post, compute, wait.
//!
//! A hop begins on a rank when its last one has ended. Its messages set out once both ends have posted them; a device sends one after
//! another, and receives likewise. Messages are served in the order in which they set out, independently at the sender's and at the
//! receiver's end: what an ideal switch between them achieves. Of messages that set out together, those due first go first, then those of
//! lower ranks. A rank's hop ends when it has computed and everything due in it is sent and received; a message may take more hops than the
//! one that posts it. Where the devices of a node help each other, a hop's computing takes all of them equally long. All of it is
//! arithmetic in a fixed order, so that the same walk always takes the same time.

use std::ops::Range;

use crate::{Cluster, Link, Load, Message};

/// The times of all ranks after a walk, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// When each rank is done, on the clock of its start.
    pub finish: Vec<f64>,
    /// Seconds that each rank spent computing.
    pub computing: Vec<f64>,
    /// Seconds that each rank spent waiting for messages: on the wire, or for late ranks.
    pub waiting: Vec<f64>,
}

impl Walk {
    /// When the last rank is done.
    pub fn end(&self) -> f64 {
        latest(&self.finish)
    }
}

/// Walks `load` over the devices of `cluster`, with ranks starting at `start`, in seconds.
///
/// # Panics
/// When there are fewer devices, or starts, than ranks.
pub fn walk(load: &Load, cluster: &Cluster, start: &[f64]) -> Walk {
    watched(load, cluster, start, &mut |_| {})
}

/// An event of a walk, with times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    /// Message number `index` of those that `from` posts in hop `hop` has reached its receiver.
    Arrived {
        /// The hop that posts the message.
        hop: usize,
        from: usize,
        index: usize,
        at: f64,
    },
    /// A rank has finished a hop.
    Done { hop: usize, rank: usize, begin: f64, computed: f64, end: f64 },
}

/// Walks a load and reports events as it goes: a hop's messages before the ranks that finish it.
pub(crate) fn watched(
    load: &Load,
    cluster: &Cluster,
    start: &[f64],
    watch: &mut dyn FnMut(Event),
) -> Walk {
    let world = load.world();
    assert!(cluster.has(world), "a rank needs a device");
    assert_eq!(start.len(), world, "every rank has a start");
    let idle = vec![0.0; world];
    let mut walk = Walk { finish: start.to_vec(), computing: idle.clone(), waiting: idle };
    let places = world.max(cluster.node_of(world - 1) + 1);
    let mut ports = Ports { cluster, free: vec![[0.0; 4]; places] };
    let speed = cluster.rates.attention(load.pass);
    // By hop and rank, when the last message that is due then has arrived.
    let mut due = vec![vec![0.0_f64; world]; load.hops()];
    for hop in 0..load.hops() {
        ports.hop(load, hop, &walk.finish, &mut due, watch);
        let alone =
            |rank: usize| load.ranks[rank][hop].operations / speed * cluster.slowdown_of(rank);
        let together =
            |node: Range<usize>| node.clone().map(alone).sum::<f64>() / node.len() as f64;
        let helped = cluster.helping.then(|| by_node(cluster, world).map(together));
        let helped: Option<Vec<f64>> = helped.map(Iterator::collect);
        for (rank, arrived) in due[hop].iter().enumerate() {
            let node = || cluster.node_of(rank) - cluster.node_of(0);
            let computing = helped.as_ref().map_or_else(|| alone(rank), |nodes| nodes[node()]);
            let begin = walk.finish[rank];
            let computed = begin + computing;
            let end = computed.max(*arrived);
            watch(Event::Done { hop, rank, begin, computed, end });
            walk.computing[rank] += computing;
            walk.waiting[rank] += end - computed;
            walk.finish[rank] = end;
        }
    }
    walk
}

/// The ranks of every node, from the first rank's to the last rank's.
fn by_node(cluster: &Cluster, world: usize) -> impl Iterator<Item = Range<usize>> {
    (cluster.node_of(0)..=cluster.node_of(world - 1)).map(move |node| {
        let ranks = cluster.devices_of(node);
        ranks.start..ranks.end.min(world)
    })
}

/// The latest of some times; NaN where one is none.
pub(crate) fn latest(times: &[f64]) -> f64 {
    let later = |one: f64, other: f64| if one.is_nan() || one > other { one } else { other };
    times.iter().copied().fold(0.0, later)
}

/// A message that is in flight.
struct Flight {
    from: usize,
    /// The message's index among those that its sender posts in the hop.
    index: usize,
    sent: Message,
    /// When both ends have posted the message.
    posted: f64,
}

struct Ports<'a> {
    cluster: &'a Cluster,
    /// When each port has finished what it was given so far: of a device within its node, in and out, and of a device, or of the node whose
    /// devices share a link, from and to other nodes.
    free: Vec<[f64; 4]>,
}

impl Ports<'_> {
    /// Posts the messages of a hop that ranks start at `begin`; returns when they arrive.
    fn hop(
        &mut self,
        load: &Load,
        hop: usize,
        begin: &[f64],
        due: &mut [Vec<f64>],
        watch: &mut dyn FnMut(Event),
    ) {
        let mut flights: Vec<Flight> = Vec::new();
        for (from, hops) in load.ranks.iter().enumerate() {
            let posted = |sent: &Message| begin[from].max(begin[sent.to]);
            let flight = |(index, sent): (usize, &Message)| Flight {
                from,
                index,
                sent: *sent,
                posted: posted(sent),
            };
            flights.extend(hops[hop].sends.iter().enumerate().map(flight));
        }
        // Stable: at equal times and urgency, messages stay in the order of ranks.
        let haste = |a: &Flight, b: &Flight| a.sent.hops.cmp(&b.sent.hops);
        flights.sort_by(|a, b| a.posted.total_cmp(&b.posted).then_with(|| haste(a, b)));
        for flight in &flights {
            let Flight { from, index, sent: Message { to, hops, .. }, .. } = *flight;
            let link = self.cluster.link(from, to);
            let served = self.serve(flight, link, true).max(self.serve(flight, link, false));
            watch(Event::Arrived { hop, from, index, at: served + link.latency });
            let last = (hop + hops).clamp(1, due.len()) - 1;
            for rank in [from, to] {
                due[last][rank] = due[last][rank].max(served + link.latency);
            }
        }
    }

    /// When the port at one end of a message has finished it.
    fn serve(&mut self, flight: &Flight, link: Link, out: bool) -> f64 {
        let node = |rank: usize| self.cluster.node_of(rank);
        let Flight { from, sent: Message { to, bytes, .. }, posted, .. } = *flight;
        let (end, inside) = (if out { from } else { to }, node(from) == node(to));
        let place = if self.cluster.shared && !inside { node(end) } else { end };
        let free = &mut self.free[place][2 * usize::from(inside) + usize::from(out)];
        *free = free.max(posted) + bytes as f64 / link.bandwidth;
        *free
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::Pass;

    use super::*;
    use crate::Step;

    /// Devices of 1 operation and 1 byte per second, `per_node` to a node.
    fn plain(nodes: usize, per_node: usize) -> Cluster {
        let mut cluster = Cluster::threads(per_node, per_node);
        cluster.nodes = nodes;
        cluster.helping = false;
        cluster.rates.forward = 1.0;
        cluster.inside = Link { bandwidth: 1.0, latency: 0.0 };
        cluster.between = Link { bandwidth: 0.5, latency: 3.0 };
        cluster
    }

    /// A hop in which rank `r` computes `operations[r]` and sends `bytes` to the next.
    fn ring(operations: &[f64], bytes: u64) -> Vec<Step> {
        let world = operations.len();
        let step = |(rank, operations): (usize, &f64)| Step {
            sends: vec![Message { to: (rank + 1) % world, bytes, hops: 1 }],
            operations: *operations,
        };
        operations.iter().enumerate().map(step).collect()
    }

    fn load(hops: &[Vec<Step>]) -> Load {
        let rank = |rank: usize| hops.iter().map(|steps| steps[rank].clone()).collect();
        Load { pass: Pass::Forward, ranks: (0..hops[0].len()).map(rank).collect() }
    }

    fn walked(load: &Load, cluster: &Cluster) -> Walk {
        walk(load, cluster, &vec![0.0; load.world()])
    }

    #[test]
    fn what_is_no_time_is_not_lost() {
        assert_eq!(latest(&[1.0, 3.0, 2.0]), 3.0);
        for times in [[1.0, f64::NAN, 2.0], [f64::NAN, 1.0, 2.0], [1.0, 2.0, -f64::NAN]] {
            assert!(latest(&times).is_nan(), "{times:?}");
        }
    }

    #[test]
    fn computing_hides_what_travels() {
        let hidden = walked(&load(&[ring(&[5.0; 3], 4)]), &plain(1, 3));
        assert_eq!((hidden.finish, hidden.waiting), (vec![5.0; 3], vec![0.0; 3]));
        let exposed = walked(&load(&[ring(&[5.0; 3], 7)]), &plain(1, 3));
        assert_eq!((exposed.finish, exposed.waiting), (vec![7.0; 3], vec![2.0; 3]));
        let instant = plain(1, 3).without_links();
        assert_eq!(walked(&load(&[ring(&[5.0; 3], 7)]), &instant).finish, vec![5.0; 3]);
    }

    #[test]
    fn who_is_late_delays_its_neighbours_and_theirs_a_hop_later() {
        let late = [1.0, 1.0, 9.0, 1.0];
        let hops = [ring(&late, 1), ring(&[1.0; 4], 1), ring(&[1.0; 4], 1)];
        let first = walked(&load(&hops[..1]), &plain(1, 4));
        assert_eq!(first.finish, [1.0, 1.0, 9.0, 1.0]);
        let second = walked(&load(&hops[..2]), &plain(1, 4));
        // Ranks 1 and 3 exchange with rank 2; rank 0 does not.
        assert_eq!(second.finish, [2.0, 10.0, 10.0, 10.0]);
        let third = walked(&load(&hops), &plain(1, 4));
        assert_eq!(third.finish, [11.0; 4]);
        assert_eq!(third.waiting, [8.0, 8.0, 0.0, 8.0]);
        let mut slow = plain(1, 4);
        slow.slowdown.insert(1, 3.0);
        assert_eq!(walked(&load(&hops[1..2]), &slow).finish, [1.0, 3.0, 1.0, 1.0]);
    }

    #[test]
    fn a_message_may_take_several_hops() {
        let mut hops = [ring(&[5.0; 2], 12), ring(&[5.0; 2], 0), ring(&[5.0; 2], 0)];
        hops[1..].iter_mut().flatten().for_each(|step| step.sends.clear());
        assert_eq!(walked(&load(&hops), &plain(1, 2)).finish, [22.0; 2]);
        hops[0].iter_mut().for_each(|step| step.sends[0].hops = 2);
        let patient = walked(&load(&hops), &plain(1, 2));
        assert_eq!((patient.finish, patient.waiting), (vec![17.0; 2], vec![2.0; 2]));
        hops[0].iter_mut().for_each(|step| step.sends[0].hops = 3);
        assert_eq!(walked(&load(&hops), &plain(1, 2)).finish, [15.0; 2]);
    }

    #[test]
    fn a_device_sends_one_after_the_other() {
        let mut everybody = Vec::new();
        for rank in 0..4 {
            let others = (0..4).filter(|other| *other != rank);
            everybody.push(Step {
                sends: others.map(|to| Message { to, bytes: 2, hops: 1 }).collect(),
                operations: 1.0,
            });
        }
        let all = load(&[everybody]);
        assert_eq!(walked(&all, &plain(1, 4)).finish, [6.0; 4]);
        // Two nodes of two: 2 bytes inside, 4 bytes of half the speed between, each way apart.
        assert_eq!(walked(&all, &plain(2, 2)).finish, [11.0; 4]);
        let shared = Cluster { shared: true, ..plain(2, 2) };
        assert_eq!(walked(&all, &shared).end(), 19.0);
        assert_eq!((all.bytes(0), all.operations(0)), (6, 1.0));
    }
}
