//! What an optimizer step of a plan takes on a cluster.
//!
//! With L layers, M micro-batches, n rows of a rank in a micro-batch, h = `hidden_size`, a and k the
//! widths of all query and all key/value heads, f = `intermediate_size` and V the vocabulary, a rank
//! computes per layer and row
//!
//! ```text
//! forward    2 (2 h a + 2 h k + 3 h f)               products with weights
//! backward   twice as much, and 2 (h a + 2 h k + 2 h f) again where layers are recomputed
//! loss       6 h V                                   once per micro-batch
//! attention  the walk of the schedule, in both passes
//! ```
//!
//! In a layer every rank computes its products, then all walk the schedule; who is done first begins
//! the next layer. The first layer and the period of those behind it make a pass. After the last
//! micro-batch the gradients are summed over all ranks, a ring: `2 (W - 1) / W` times their bytes.
//! Norms, rotations, the optimizer and reading data are left out: they are the same for all
//! strategies, and small.
//!
//! What faster links would save is *exposed*; what remains between the mean rank's computing and
//! the step is *uneven*: ranks that wait for slower ones.

use annulus_sequence::{Pass, Proof, Schedule};

use super::choose::enough_devices;
use super::walk::{latest, walk};
use super::{Cluster, Load};
use crate::cost::{F32, Share};
use crate::{Peak, Plan, Problems, Recompute};

/// What a step takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds of a step.
    pub step: f64,
    /// Seconds of one attention forward, all ranks together until the last is done.
    pub forward: f64,
    /// Seconds of one attention backward.
    pub backward: f64,
    /// Seconds of the step that links which take no time would save.
    pub exposed: f64,
    /// Seconds of the step in which the mean rank waits for others that compute.
    pub uneven: f64,
    /// Operations of attention on the rank that has the most of each hop, summed over hops and
    /// passes, as a multiple of an even share: 1 at best.
    pub balance: f64,
    /// Bytes of attention that the busiest rank puts on the wire per step.
    pub bytes: u64,
    /// Seconds of the step in which gradients are summed over all ranks: the same for all
    /// strategies, and a part of what is exposed.
    pub gradient_sum: f64,
    /// Peak memory by rank of a sequence, bytes, on devices that share none.
    pub peak: Vec<u64>,
}

/// Both passes of one attention.
pub(super) struct Loads {
    pub(super) forward: Load,
    pub(super) backward: Load,
}

impl Estimate {
    /// What a step of `plan` takes on `cluster`, every rank on the device of its number.
    ///
    /// # Errors
    /// When there are fewer devices than ranks.
    pub fn of(plan: &Plan, cluster: &Cluster) -> Result<Estimate, Problems> {
        enough_devices(&plan.experiment, cluster)?;
        let passes = plan.passes()?;
        let load = |schedule| Load::of(schedule, plan.block(), cluster.rates.tile);
        let loads = Loads { forward: load(&passes.forward.0), backward: load(&passes.backward.0) };
        let (step, computing) = slowest_replica(plan, cluster, &loads);
        let (unlinked, _) = slowest_replica(plan, &cluster.without_links(), &loads);
        let idle = vec![0.0; loads.forward.world()];
        Ok(Estimate {
            step,
            forward: walk(&loads.forward, cluster, 0, &idle).end(),
            backward: walk(&loads.backward, cluster, 0, &idle).end(),
            exposed: (step - unlinked).max(0.0),
            // Sums in another order may differ by a rounding.
            uneven: (unlinked - computing).max(0.0),
            balance: balance(&loads),
            bytes: bytes(plan, &loads),
            gradient_sum: gradient_sum(plan, cluster),
            peak: peaks(plan, &passes.forward, &passes.backward),
        })
    }

    /// The share of the step in which the mean rank computes.
    pub fn efficiency(&self) -> f64 {
        (self.step - self.exposed - self.uneven) / self.step
    }

    /// Peak memory of the fullest rank, bytes.
    pub fn fullest(&self) -> u64 {
        self.peak.iter().copied().max().unwrap_or_default()
    }
}

/// The slowest rank of every hop, as a multiple of an even share.
fn balance(loads: &Loads) -> f64 {
    let (mut slowest, mut all) = (0.0, 0.0);
    for load in [&loads.forward, &loads.backward] {
        for hop in 0..load.hops() {
            let operations: Vec<f64> =
                load.ranks.iter().map(|steps| steps[hop].operations).collect();
            slowest += latest(&operations);
            all += operations.iter().sum::<f64>();
        }
    }
    let even = all / loads.forward.world() as f64;
    if even > 0.0 { slowest / even } else { 1.0 }
}

fn bytes(plan: &Plan, loads: &Loads) -> u64 {
    let times = (plan.shape.num_hidden_layers * plan.micro_batches) as u64;
    let of_rank = |rank| {
        let both = loads.forward.bytes(rank).saturating_add(loads.backward.bytes(rank));
        both.saturating_mul(times)
    };
    (0..loads.forward.world()).map(of_rank).max().unwrap_or_default()
}

/// Seconds of the sum of gradients over all ranks, in a ring.
pub(super) fn gradient_sum(plan: &Plan, cluster: &Cluster) -> f64 {
    let (world, link) = (plan.world(), cluster.ring_link(plan.world()));
    let messages = 2.0 * (world as f64 - 1.0);
    let bytes = messages / world as f64 * (F32 * plan.shape.elements()) as f64;
    bytes / link.bandwidth + messages * link.latency
}

/// By rank, where what arrives takes memory of its own. Blocks in flight are those of the proofs.
fn peaks(plan: &Plan, forward: &(Schedule, Proof), backward: &(Schedule, Proof)) -> Vec<u64> {
    let peak = |rank: usize| {
        let share = Share::new(plan, plan.memory, [forward, backward], rank);
        let there = share.peak();
        let ahead = share.received(Pass::Forward, forward.1.alive[rank]);
        let back = share.received(Pass::Backward, backward.1.alive[rank]);
        let key_value = ahead.max(back);
        share.together(&Peak { key_value, ..there })
    };
    (0..forward.0.world()).map(peak).collect()
}

/// Seconds of the step of the slowest replica, and what the mean rank of all computes.
fn slowest_replica(plan: &Plan, cluster: &Cluster, loads: &Loads) -> (f64, f64) {
    let world = loads.forward.world();
    let within = cluster.devices_per_node.is_multiple_of(world);
    let aligned = within || world.is_multiple_of(cluster.devices_per_node);
    let alike = aligned && cluster.slowdown.is_empty();
    let replicas = if alike { 1 } else { plan.experiment.mesh.data };
    let steps: Vec<(f64, f64)> = (0..replicas)
        .map(|replica| Timing { plan, cluster, loads, first: replica * world }.step())
        .collect();
    let slowest = steps.iter().map(|(step, _)| *step).fold(0.0, f64::max);
    (slowest, steps.iter().map(|(_, computing)| computing).sum::<f64>() / replicas as f64)
}

/// The time of a replica's step.
#[derive(Clone, Copy)]
pub(super) struct Timing<'a> {
    pub(super) plan: &'a Plan,
    pub(super) cluster: &'a Cluster,
    pub(super) loads: &'a Loads,
    /// The device of the replica's first rank.
    pub(super) first: usize,
}

impl Timing<'_> {
    /// Seconds of a step, and of it what the mean rank computes.
    fn step(self) -> (f64, f64) {
        let [forward, backward, loss] = self.products();
        let (ahead, computed_ahead) = self.pass(&self.loads.forward, forward);
        let (back, computed_back) = self.pass(&self.loads.backward, backward);
        let loss = self.by_rank(loss);
        let (most, mean) = (latest(&loss), mean(&loss));
        let times = self.plan.micro_batches as f64;
        let step = times * (ahead + back + most) + gradient_sum(self.plan, self.cluster);
        (step, times * (computed_ahead + computed_back + mean))
    }

    /// Operations of products with weights, per row: of a layer forward and backward, and of the
    /// loss.
    pub(super) fn products(self) -> [f64; 3] {
        let shape = &self.plan.shape;
        let [h, f] = [shape.hidden_size, shape.intermediate_size].map(|size| size as f64);
        let [a, k] = [shape.query_width(), shape.key_value_width()].map(|size| size as f64);
        let forward = 2.0 * (2.0 * h * a + 2.0 * h * k + 3.0 * h * f);
        let again = match self.plan.memory.recompute {
            Recompute::None => 0.0,
            Recompute::Layer | Recompute::Auto => 2.0 * (h * a + 2.0 * h * k + 2.0 * h * f),
        };
        [forward, 2.0 * forward + again, 6.0 * h * self.plan.vocabulary() as f64]
    }

    /// The seconds that so many operations per row take every rank.
    pub(super) fn by_rank(self, operations: f64) -> Vec<f64> {
        let second = |rank: usize| {
            let positions = self.plan.ranks[rank].positions.tokens();
            let rows = (positions * self.plan.micro_batch) as f64;
            rows * operations / self.cluster.rates.products
                * self.cluster.slowdown_of(self.first + rank)
        };
        (0..self.loads.forward.world()).map(second).collect()
    }

    /// All layers of a pass: its seconds, and the mean rank's of computing.
    fn pass(self, load: &Load, products: f64) -> (f64, f64) {
        let (layers, products) = (self.plan.shape.num_hidden_layers as f64, self.by_rank(products));
        let mut clocks = vec![0.0; load.world()];
        let mut ends = [0.0; 2];
        let mut computing = 0.0;
        for end in &mut ends {
            let started: Vec<f64> = clocks.iter().zip(&products).map(|(a, b)| a + b).collect();
            let walked = walk(load, self.cluster, self.first, &started);
            *end = walked.end();
            computing = mean(&walked.computing) + mean(&products);
            clocks = walked.finish;
        }
        (ends[0] + (layers - 1.0) * (ends[1] - ends[0]), layers * computing)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
