//! What a step waits for beside its passes: gathers of sharded weights, what is offloaded, and sums of gradients.
//!
//! All of it hides behind a micro-batch's passes. A link's free time is given once: to attention's messages, then to the gathers of the
//! pass, then to the sums of backward. A pass that waits for weights, or for what is offloaded, is longer, and what else travels hides
//! behind the whole of it: so a faster device or link never makes a step longer.

use annulus_plan::{Group, Plan};

use crate::shares::{Gathers, sharding, slowest};
use crate::{Cluster, Link, Offloaded};

/// A micro-batch's passes on one replica: forward and backward.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Passes {
    /// Seconds through all layers.
    pub(crate) seconds: [f64; 2],
    /// By pass, seconds of these for which attention's messages occupy the busiest port within a node, and to other nodes.
    pub(crate) busy: [[f64; 2]; 2],
}

impl Passes {
    /// Seconds of both.
    pub(crate) fn both(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// Seconds of a pass, `longer` than it is, in which a port is free.
    fn free(&self, pass: usize, port: usize, longer: f64) -> f64 {
        (self.seconds[pass] + longer - self.busy[pass][port]).max(0.0)
    }
}

/// What does not hide behind the passes of a step's micro-batches, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Waits {
    /// Sums of gradients.
    pub(crate) gradients: f64,
    /// Gathers of sharded weights.
    pub(crate) weights: f64,
    /// What is offloaded.
    pub(crate) offloaded: Offloaded,
}

impl Waits {
    /// What does not hide behind a micro-batch's `passes`.
    pub(crate) fn behind(plan: &Plan, cluster: &Cluster, passes: Passes) -> Waits {
        let gathers = Gathers::of(plan, cluster);
        let port = gathers.ring.port;
        let gathering =
            [0, 1].map(|pass| (gathers.behind[pass] - passes.free(pass, port, 0.0)).max(0.0));
        let gathered = [0, 1].map(|pass| passes.seconds[pass] + gathering[pass]);
        let (offloaded, reading) = Offloaded::of(plan, cluster, gathered);
        // In longer passes more is summed.
        let longer = gathering[1] + reading[1];
        Waits {
            gradients: sums(plan, cluster, |port| {
                let gathers = if port == gathers.ring.port { gathers.behind[1] } else { 0.0 };
                (passes.free(1, port, longer) - gathers).max(0.0)
            }),
            weights: gathers.waits(plan.micro_batches, gathering),
            offloaded,
        }
    }

    /// Seconds of all waits.
    pub(crate) fn seconds(&self) -> f64 {
        self.gradients + self.weights + self.offloaded.seconds()
    }
}

/// Seconds of gradient sums, a ring over all ranks, that do not hide behind backward passes in which a port is `free` for so many seconds.
/// Every micro-batch is summed; the result is exchanged between mirrors once.
fn sums(plan: &Plan, cluster: &Cluster, free: impl Fn(usize) -> f64) -> f64 {
    let sharding = sharding(plan, cluster);
    let all = Group { first: 0, step: 1, many: plan.summing() };
    let ring = slowest(plan, cluster, &[all]);
    let free = free(ring.port);
    let slice = plan.gradient_bytes() as f64 / sharding.ranks() as f64;
    let seconds = |ranks: usize, link: Link| {
        let messages = ranks as f64 - 1.0;
        messages * (slice / link.bandwidth + link.latency)
    };
    let exposed = |all: f64| (all - free).max(all * plan.summed_last());
    let [_, mirrors] = sharding.groups();
    let summed = seconds(sharding.ranks(), ring.link);
    let passed_on = seconds(sharding.mirrors, slowest(plan, cluster, &mirrors).link);
    (plan.micro_batches - 1) as f64 * exposed(summed) + exposed(summed + passed_on)
}
