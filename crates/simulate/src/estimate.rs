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
//! the next layer. The first layer and the period of those behind it make a pass, of every group of
//! layers apart: groups add up. Gradients are summed over all W ranks, a ring: `(W - 1) / W` times their bytes, and behind the last micro-batch what M mirrors pass
//! on, `(M - 1) / W` times those. That hides behind backward while links are free, but for the stage that is summed last. Weights of which
//! devices hold shares are gathered once an update, behind nothing, or before every stage of both passes, behind the stages before it but
//! for the first of a step (`crate::shares`). What is offloaded travels behind the passes, too (`crate::offload`). Norms, rotations, the optimizer and reading data are left out: they are
//! the same for all strategies, and small. Of tensor-parallel ranks a, k, f and V are what one has, and rows between them are gathered
//! and scattered behind nothing (`crate::tensor`).
//!
//! What faster links would save is *exposed*; what remains between the mean rank's computing and
//! the step is *uneven*: ranks that wait for slower ones.

use std::sync::Arc;

use annulus_experiment::{Order, Settled};
use annulus_memory::ByClass;
use annulus_plan::{Group, LayerGroup, Plan, RankPlan};
use annulus_sequence::{Pass, Schedules};
use annulus_yaml::Problems;

use crate::choose::enough_devices;
use crate::load::Counted;
use crate::tensor::{AT_ENDS, collectives};
use crate::walk::latest;
use crate::work::{Work, added};
use crate::{Cluster, Link, Offloaded, shares};

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
    /// Of attention per step, the most bytes that a rank sends within its node, and the most that one sends to other nodes:
    /// of more than 256 ranks, by the one that sends most in every hop.
    pub sent: [u64; 2],
    /// Seconds of the step in which gradients are summed over all ranks and backward is over: a part of what is exposed.
    pub gradient_sum: f64,
    /// What the step waits for offloaded activations and moments: a part of what is exposed.
    pub offloaded: Offloaded,
    /// Peak memory by rank of a sequence, bytes, on devices that share none.
    pub peak: Vec<u64>,
    /// That of the fullest rank by class: more than its peak, because classes do not peak together.
    pub classes: ByClass,
    /// What is traded for memory.
    pub memory: Settled,
}

/// Both passes of one attention, and the layers that have it.
pub(crate) struct Loads {
    pub(crate) forward: Work,
    pub(crate) backward: Work,
    pub(crate) layers: usize,
    /// Whether forward and backward begin with such a layer.
    pub(crate) begins: [bool; 2],
}

impl Estimate {
    /// What a step of `plan` takes on `cluster`, every rank on the device of its number.
    ///
    /// # Errors
    /// When there are fewer devices than ranks.
    pub fn of(plan: &Plan, cluster: &Cluster) -> Result<Estimate, Problems> {
        enough_devices(&plan.experiment, cluster)?;
        let mesh = &plan.experiment.mesh;
        let seen = cluster.of_replica(mesh.replica(0));
        let loads = loads(plan, &seen);
        let (step, _) = slowest_replica(plan, cluster, &loads);
        let passes = Timing { plan, cluster: &seen, loads: &loads }.passes();
        let (unlinked, computing) = slowest_replica(plan, &cluster.without_links(), &loads);
        // Threads of a process lend each other what they send.
        let together = || plan.ranks.iter().map(|rank| (rank.peak, rank.together)).collect();
        let peaks = if cluster.helping { together() } else { plan.peaks_apart() };
        let fullest = peaks.iter().max_by_key(|(_, together)| *together);
        let alone = |of: fn(&Loads) -> &Work| mean_layer(&loads, |one| of(one).seconds(&seen));
        Ok(Estimate {
            step,
            forward: alone(|one| &one.forward),
            backward: alone(|one| &one.backward),
            exposed: (step - unlinked).max(0.0),
            // Sums in another order may differ by a rounding.
            uneven: (unlinked - computing).max(0.0),
            balance: balance(&loads),
            bytes: bytes(plan),
            sent: sent(plan, cluster, &loads),
            gradient_sum: gradient_sum(plan, cluster, passes[1]),
            offloaded: Offloaded::of(plan, cluster, passes),
            classes: fullest.map(|(classes, _)| *classes).unwrap_or_default(),
            peak: peaks.iter().map(|(_, together)| *together).collect(),
            memory: plan.memory,
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

/// The loads of every group of layers on the devices that a replica sees.
pub(crate) fn loads(plan: &Plan, cluster: &Cluster) -> Vec<Loads> {
    let last = plan.shape.num_hidden_layers - 1;
    let of_group = |(group, passes): (&LayerGroup, &Arc<Schedules>)| {
        let mut counted = Counted::new(plan.block(), cluster.rates.tile);
        Loads {
            forward: Work::of(passes.of(Pass::Forward), &mut counted, cluster),
            backward: Work::of(passes.of(Pass::Backward), &mut counted, cluster),
            layers: group.layers.len(),
            begins: [0, last].map(|layer| group.layers.contains(&layer)),
        }
    };
    plan.groups.iter().zip(&plan.passes).map(of_group).collect()
}

/// How many layers of each group there are to one of the first group.
fn shares(loads: &[Loads]) -> impl Iterator<Item = (f64, &Loads)> {
    loads.iter().map(|one| (one.layers as f64 / loads[0].layers as f64, one))
}

/// The mean over all layers of what is known of every group.
fn mean_layer(loads: &[Loads], of: impl Fn(&Loads) -> f64) -> f64 {
    let all: f64 = shares(loads).map(|(share, _)| share).sum();
    shares(loads).map(|(share, one)| share * of(one)).sum::<f64>() / all
}

/// The slowest rank of every hop, as a multiple of an even share.
fn balance(loads: &[Loads]) -> f64 {
    let passes =
        shares(loads).flat_map(|(share, one)| [(share, &one.forward), (share, &one.backward)]);
    let weighed = passes.map(|(share, work)| work.slowest_and_mean().map(|all| share * all));
    let [slowest, even] = weighed.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
    if even > 0.0 { slowest / even } else { 1.0 }
}

/// What the busiest rank sends.
fn bytes(plan: &Plan) -> u64 {
    let sent = plan.ranks.iter().map(|rank| rank.forward.saturating_add(rank.backward));
    sent.max().unwrap_or_default()
}

/// Bytes within a node and to others, each of the rank that sends most.
fn sent(plan: &Plan, cluster: &Cluster, loads: &[Loads]) -> [u64; 2] {
    let mesh = &plan.experiment.mesh;
    let mut most = [0; 2];
    for replica in 0..replicas(plan, cluster) {
        let seen = cluster.of_replica(mesh.replica(replica));
        let mut by_rank = vec![[0; 2]; mesh.sequence];
        for Loads { forward, backward, layers, .. } in loads {
            let times = (layers * plan.micro_batches) as u64;
            for work in [forward, backward] {
                for (sum, sent) in by_rank.iter_mut().zip(work.sent(&seen)) {
                    *sum = added(*sum, sent.map(|bytes| bytes.saturating_mul(times)));
                }
            }
        }
        most = by_rank.into_iter().fold(most, |a, b| [0, 1].map(|place| a[place].max(b[place])));
    }
    most
}

/// Seconds of a step that do not hide behind passes of a micro-batch that take so long: of sums of gradients, of gathering weights, and
/// of what is offloaded.
fn waits(plan: &Plan, cluster: &Cluster, passes: [f64; 2]) -> [f64; 3] {
    [
        gradient_sum(plan, cluster, passes[1]),
        shares::gathered(plan, cluster, passes),
        Offloaded::of(plan, cluster, passes).seconds(),
    ]
}

/// The same behind the passes of the first replica.
pub(crate) fn waits_behind(plan: &Plan, cluster: &Cluster) -> [f64; 3] {
    let seen = cluster.of_replica(plan.experiment.mesh.replica(0));
    let loads = loads(plan, &seen);
    waits(plan, cluster, Timing { plan, cluster: &seen, loads: &loads }.passes())
}

/// Seconds of the sums of gradients over all ranks, in a ring, that do not hide behind backward passes of `back` seconds: while links
/// are free. Those of every micro-batch are summed; what they come to is passed on once, unless who sums it updates it.
fn gradient_sum(plan: &Plan, cluster: &Cluster, back: f64) -> f64 {
    let sharding = shares::sharding(plan, cluster);
    let all = Group { first: 0, step: 1, many: plan.summing() };
    let link = shares::slowest(plan, cluster, &[all]);
    // Attention's messages take the link as long.
    let sent = plan.ranks.iter().map(|rank| rank.backward / plan.micro_batches as u64).max();
    let free = back - sent.unwrap_or_default() as f64 / link.bandwidth;
    let slice = plan.gradient_bytes() as f64 / sharding.ranks() as f64;
    let seconds = |ranks: usize, link: Link| {
        let messages = ranks as f64 - 1.0;
        messages * (slice / link.bandwidth + link.latency)
    };
    let exposed = |all: f64| (all - free.max(0.0)).max(all * plan.summed_last());
    let [_, mirrors] = sharding.groups();
    let summed = seconds(sharding.ranks(), link);
    let passed_on = seconds(sharding.mirrors, shares::slowest(plan, cluster, &mirrors));
    (plan.micro_batches - 1) as f64 * exposed(summed) + exposed(summed + passed_on)
}

/// How many replicas are to be looked at: one where all do alike.
fn replicas(plan: &Plan, cluster: &Cluster) -> usize {
    let mesh = &plan.experiment.mesh;
    // Ranks between one replica's first and its next, or the next one's first.
    let unit = match mesh.order {
        Order::SequenceFirst => mesh.sequence,
        Order::DataFirst => mesh.data,
    };
    let unit = unit * mesh.tensor;
    let within = cluster.devices_per_node.is_multiple_of(unit);
    let aligned = within || unit.is_multiple_of(cluster.devices_per_node);
    let alike = aligned && cluster.slowdown.is_empty();
    if alike { 1 } else { mesh.data }
}

/// Seconds of the step of the slowest replica, and what the mean rank of all computes.
fn slowest_replica(plan: &Plan, cluster: &Cluster, loads: &[Loads]) -> (f64, f64) {
    let replicas = replicas(plan, cluster);
    let step = |replica: usize| {
        let seen = cluster.of_replica(plan.experiment.mesh.replica(replica));
        Timing { plan, cluster: &seen, loads }.step()
    };
    let steps: Vec<(f64, f64)> = (0..replicas).map(step).collect();
    let slowest = steps.iter().map(|(step, _)| *step).fold(0.0, f64::max);
    (slowest, steps.iter().map(|(_, computing)| computing).sum::<f64>() / replicas as f64)
}

/// The time of a replica's step.
#[derive(Clone, Copy)]
pub(crate) struct Timing<'a> {
    pub(crate) plan: &'a Plan,
    /// As the replica sees it.
    pub(crate) cluster: &'a Cluster,
    pub(crate) loads: &'a [Loads],
}

impl Timing<'_> {
    /// Seconds of a step, and of it what the mean rank computes.
    fn step(self) -> (f64, f64) {
        let [forward, _, loss] = self.products();
        let (ahead, computed_ahead) = self.pass(|one| (&one.forward, one.begins[0]), &forward);
        let (back, computed_back) = self.backward();
        let (most, mean) = (latest(&loss), mean(&loss));
        let times = self.plan.micro_batches as f64;
        let behind: f64 = waits(self.plan, self.cluster, [ahead, back]).iter().sum();
        let step = times * (ahead + back + most) + behind;
        (step, times * (computed_ahead + computed_back + mean))
    }

    /// Seconds of forward and of backward through all layers.
    fn passes(self) -> [f64; 2] {
        let [forward, ..] = self.products();
        let (ahead, _) = self.pass(|one| (&one.forward, one.begins[0]), &forward);
        [ahead, self.backward().0]
    }

    /// Seconds of backward through all layers, and of it what the mean rank computes.
    fn backward(self) -> (f64, f64) {
        let [_, products, _] = self.products();
        self.pass(|one| (&one.backward, one.begins[1]), &products)
    }

    /// The seconds that products with weights take every rank, and rows between tensor-parallel ones: of a layer forward and backward,
    /// and of the loss with the embedding.
    pub(crate) fn products(self) -> [Vec<f64>; 3] {
        let (operations, between) = (self.plan.products_per_row(), self.between());
        [0, 1, 2].map(|part| {
            let seconds = self.by_rank(operations[part]).into_iter();
            seconds.map(|seconds| seconds + between[part]).collect()
        })
    }

    /// Of these what rows between tensor-parallel ranks take.
    pub(crate) fn between(self) -> [f64; 3] {
        let [ahead, back] = self.plan.tensor_collectives();
        [ahead, back, AT_ENDS].map(|number| collectives(self.plan, self.cluster, number))
    }

    /// The seconds that so many operations per row take every rank.
    fn by_rank(self, operations: f64) -> Vec<f64> {
        let second = |(place, rank): (usize, &RankPlan)| {
            let rows = (rank.positions.tokens() * self.plan.micro_batch) as f64;
            rows * operations / self.cluster.rates.products * self.cluster.slowdown_of(place)
        };
        self.plan.of_sequence().enumerate().map(second).collect()
    }

    /// All layers of a pass: its seconds, and the mean rank's of computing. `of` says what of a group
    /// the pass is, and whether it begins with such a layer.
    fn pass(self, of: impl Fn(&Loads) -> (&Work, bool), products: &[f64]) -> (f64, f64) {
        let of_group = |one| {
            let (work, begins) = of(one);
            self.layers(work, one.layers as f64, begins, products)
        };
        let add = |(a, b): (f64, f64), (c, d): (f64, f64)| (a + c, b + d);
        self.loads.iter().map(of_group).reduce(add).unwrap_or_default()
    }

    /// The same of so many layers that are alike. What a rank is ahead of another where layer groups meet is lost:
    /// their times add up.
    fn layers(self, work: &Work, layers: f64, begins: bool, products: &[f64]) -> (f64, f64) {
        let mut clocks = vec![0.0; products.len()];
        let mut ends = [0.0; 2];
        let mut computing = 0.0;
        for end in &mut ends {
            let started: Vec<f64> = clocks.iter().zip(products).map(|(a, b)| a + b).collect();
            let walked = work.walk(self.cluster, &started);
            *end = walked.end();
            computing = mean(&walked.computing) + mean(products);
            clocks = walked.finish;
        }
        let period = ends[1] - ends[0];
        let seconds = if begins { ends[0] + (layers - 1.0) * period } else { layers * period };
        (seconds, layers * computing)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
