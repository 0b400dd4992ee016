//! The estimate of a plan's optimizer step on a cluster.
//!
//! With L layers, M micro-batches, n rows of a rank in a micro-batch, h = `hidden_size`, a and k the
//! widths of all query and all KV heads, f = `intermediate_size` and V the vocabulary, a rank
//! computes per layer and row
//!
//! ```text
//! forward    2 (2 h a + 2 h k + 3 h f)               products with weights
//! backward   twice as much, and 2 (h a + 2 h k + 2 h f) again where layers are recomputed
//! loss       6 h V                                   once per micro-batch
//! attention  the walk of the schedule, in both passes
//! ```
//!
//! In a layer every rank computes its products, then all walk the schedule; a rank that is done first begins the next layer. A pass is the
//! first layer and the period of those after it, separately for every layer group: groups add up. Gradients are summed over all W ranks, in
//! a ring: `(W - 1) / W` times their bytes, and after the last micro-batch `(M - 1) / W` times these, which M mirrors exchange. This hides
//! behind backward while links are free, except for the stage that is summed last. Sharded weights are gathered once per update, hidden
//! behind nothing, or before every stage of both passes, behind the stages before it except for the first of a step (`crate::shares`). What
//! is offloaded travels behind the passes, too (`crate::offload`). A link's time is counted once (`crate::waits`). Norms, rotations, the
//! optimizer and reading data are left out: they are equal for all strategies, and small. With tensor parallelism a, k, f and V are those
//! of one rank, and rows between ranks are gathered and scattered behind nothing (`crate::tensor`).
//!
//! What faster links would save is *exposed*; what else separates the mean rank's computing from the step is *uneven*: waiting for slower
//! ranks.

use std::sync::Arc;

use annulus_experiment::{Order, Settled};
use annulus_memory::ByClass;
use annulus_plan::{LayerGroup, Plan, RankPlan};
use annulus_sequence::{Pass, Schedules};
use annulus_yaml::Problems;

use crate::choose::enough_devices;
use crate::load::Counted;
use crate::plans::ranks_of_memory;
use crate::tensor::{AT_ENDS, collectives};
use crate::waits::{Passes, Waits};
use crate::walk::latest;
use crate::work::{Work, added};
use crate::{Cluster, Offloaded};

/// The estimate of an optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds of the step.
    pub step: f64,
    /// Seconds of one attention's forward, until the last rank is done.
    pub forward: f64,
    /// Seconds of one attention's backward, until the last rank is done.
    pub backward: f64,
    /// Seconds of exposed communication: what links without delay would save.
    pub exposed: f64,
    /// Seconds in which the mean rank waits for ranks that compute longer.
    pub uneven: f64,
    /// Attention operations of the slowest rank of each hop, summed over hops and passes, as a multiple of an even share: 1 at best.
    pub balance: f64,
    /// Bytes of attention that the busiest rank sends per step.
    pub bytes: u64,
    /// The most bytes of attention per step that a rank sends within its node, and to other nodes; with more than 256 ranks, of the one
    /// that sends most in every hop.
    pub sent: [u64; 2],
    /// Seconds in which gradients are summed after backward has ended: a part of `exposed`.
    pub gradient_sum: f64,
    /// The wait for offloaded activations and moments: a part of `exposed`.
    pub offloaded: Offloaded,
    /// Bytes that are offloaded at the same time: by the rank that has most, and by the node that has most.
    pub offloaded_bytes: [u64; 2],
    /// Floating-point operations of the model in a step, as its FLOP/s utilization counts them.
    pub flops: f64,
    /// Peak memory by rank of a sequence, bytes, where each has a device of its own; where ranks share a memory, an even share of it.
    pub peak: Vec<u64>,
    /// Peak memory of the fullest rank by class: their sum exceeds its peak, because classes peak at different times.
    pub classes: ByClass,
    /// The settings that trade time for memory.
    pub memory: Settled,
}

/// Both passes of one layer group's attention, and how many layers have it.
pub(crate) struct Loads {
    pub(crate) forward: Work,
    pub(crate) backward: Work,
    pub(crate) layers: usize,
    /// Whether the model's forward, and its backward, start with a layer of this group.
    pub(crate) begins: [bool; 2],
}

impl Estimate {
    /// Estimates a step of `plan` on `cluster`, every rank on the device of its number.
    ///
    /// # Errors
    /// When there are fewer devices than ranks.
    pub fn of(plan: &Plan, cluster: &Cluster) -> Result<Estimate, Problems> {
        enough_devices(&plan.experiment, cluster)?;
        let seen = cluster.of_replica(&plan.experiment.mesh, 0);
        Ok(Estimate::of_loads(plan, cluster, &seen, &loads(plan, &seen)))
    }

    /// The estimate of a plan with these `loads`, of which the first replica sees the cluster as `seen`.
    pub(crate) fn of_loads(
        plan: &Plan,
        cluster: &Cluster,
        seen: &Cluster,
        loads: &[Loads],
    ) -> Estimate {
        let (step, _) = slowest_replica(plan, cluster, loads);
        let passes = Timing { plan, cluster: seen, loads }.passes();
        let waits = Waits::behind(plan, cluster, passes);
        let (unlinked, computing) = slowest_replica(plan, &cluster.without_links(), loads);
        // Threads of a process lend each other what they send, and share one memory, whoever of them is booked for what.
        let together = || {
            let even = plan.needed().div_ceil(ranks_of_memory(&plan.experiment));
            plan.ranks.iter().map(|rank| (rank.peak_by_class, even)).collect()
        };
        let peaks = if cluster.helping { together() } else { plan.peaks_apart() };
        let fullest = peaks.iter().max_by_key(|(_, peak)| *peak);
        let alone = |of: fn(&Loads) -> &Work| mean_layer(loads, |one| of(one).seconds(seen));
        Estimate {
            step,
            forward: alone(|one| &one.forward),
            backward: alone(|one| &one.backward),
            exposed: (step - unlinked).max(0.0),
            // Summing in another order may differ by a rounding error.
            uneven: (unlinked - computing).max(0.0),
            balance: balance(loads),
            bytes: bytes(plan),
            sent: sent(plan, cluster, loads),
            gradient_sum: waits.gradients,
            offloaded: waits.offloaded,
            offloaded_bytes: plan.offloaded_at_once(cluster.devices_per_node),
            flops: plan.flops(),
            classes: fullest.map(|(classes, _)| *classes).unwrap_or_default(),
            peak: peaks.iter().map(|(_, peak)| *peak).collect(),
            memory: plan.memory,
        }
    }

    /// The fraction of the step in which the mean rank computes.
    pub fn efficiency(&self) -> f64 {
        (self.step - self.exposed - self.uneven) / self.step
    }

    /// Peak memory of the fullest rank, bytes.
    pub fn fullest(&self) -> u64 {
        self.peak.iter().copied().max().unwrap_or_default()
    }
}

/// The loads of every layer group on the devices of a replica.
pub(crate) fn loads(plan: &Plan, cluster: &Cluster) -> Vec<Loads> {
    let last = plan.shape.num_hidden_layers - 1;
    let of_group = |(group, schedules): (&LayerGroup, &Arc<Schedules>)| {
        let mut counted = Counted::new(plan.block(), cluster.rates.tile);
        Loads {
            forward: Work::of(schedules.of(Pass::Forward), &mut counted, cluster),
            backward: Work::of(schedules.of(Pass::Backward), &mut counted, cluster),
            layers: group.layers.len(),
            begins: [0, last].map(|layer| group.layers.contains(&layer)),
        }
    };
    plan.groups.iter().zip(&plan.schedules).map(of_group).collect()
}

/// The number of layers of each group per layer of the first group.
fn shares(loads: &[Loads]) -> impl Iterator<Item = (f64, &Loads)> {
    loads.iter().map(|one| (one.layers as f64 / loads[0].layers as f64, one))
}

/// The mean over all layers of a quantity known per layer group.
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

/// Bytes that the busiest rank sends.
fn bytes(plan: &Plan) -> u64 {
    let sent = plan.ranks.iter().map(|rank| rank.forward.saturating_add(rank.backward));
    sent.max().unwrap_or_default()
}

/// Bytes within nodes and between nodes, each of the rank that sends most.
fn sent(plan: &Plan, cluster: &Cluster, loads: &[Loads]) -> [u64; 2] {
    let mesh = &plan.experiment.mesh;
    let mut most = [0; 2];
    for replica in 0..replicas(plan, cluster) {
        let seen = cluster.of_replica(mesh, replica);
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

/// What does not hide behind the passes of the slowest replica.
pub(crate) fn waits_behind(plan: &Plan, cluster: &Cluster) -> Waits {
    let mesh = &plan.experiment.mesh;
    let loads = loads(plan, &cluster.of_replica(mesh, 0));
    let passes = |replica: usize| {
        let seen = cluster.of_replica(mesh, replica);
        Timing { plan, cluster: &seen, loads: &loads }.passes()
    };
    let all = (0..replicas(plan, cluster)).map(passes);
    let slowest = all.max_by(|a, b| a.both().total_cmp(&b.both()));
    Waits::behind(plan, cluster, slowest.unwrap_or_default())
}

/// The number of replicas to walk: 1 where all are alike.
fn replicas(plan: &Plan, cluster: &Cluster) -> usize {
    let mesh = &plan.experiment.mesh;
    // The ranks that must lie evenly on nodes, and on groups of nodes, for replicas to be alike.
    let unit = match mesh.order {
        Order::SequenceFirst => mesh.sequence,
        Order::DataFirst => mesh.data,
    };
    let unit = unit * mesh.tensor;
    let lies_evenly = |group: usize| group.is_multiple_of(unit) || unit.is_multiple_of(group);
    let aligned = cluster.groups().all(lies_evenly);
    let alike = aligned && cluster.slowdown.is_empty();
    if alike { 1 } else { mesh.data }
}

/// A micro-batch on one replica, seconds.
pub(crate) struct Walked {
    /// Forward and backward through all layers.
    passes: Passes,
    /// The loss.
    loss: f64,
    /// Computing of the mean rank in these.
    computing: f64,
}

/// A micro-batch on every replica that is not like another. It depends on recomputation, and not on how the state is sharded.
pub(crate) fn walked(plan: &Plan, cluster: &Cluster, loads: &[Loads]) -> Vec<Walked> {
    let of_replica = |replica: usize| {
        let seen = cluster.of_replica(&plan.experiment.mesh, replica);
        Timing { plan, cluster: &seen, loads }.walked()
    };
    (0..replicas(plan, cluster)).map(of_replica).collect()
}

/// Seconds of the slowest replica's step.
pub(crate) fn slowest_step(plan: &Plan, cluster: &Cluster, walked: &[Walked]) -> f64 {
    let step = |(replica, Walked { passes, loss, .. }): (usize, &Walked)| {
        let seen = cluster.of_replica(&plan.experiment.mesh, replica);
        let behind = Waits::behind(plan, &seen, *passes).seconds();
        plan.micro_batches as f64 * (passes.both() + loss) + behind
    };
    let steps: Vec<f64> = walked.iter().enumerate().map(step).collect();
    latest(&steps)
}

/// Seconds of the slowest replica's step, and of the mean rank's computing over all replicas.
fn slowest_replica(plan: &Plan, cluster: &Cluster, loads: &[Loads]) -> (f64, f64) {
    let walked = walked(plan, cluster, loads);
    let computing = walked.iter().map(|one| one.computing).sum::<f64>() / walked.len() as f64;
    (slowest_step(plan, cluster, &walked), plan.micro_batches as f64 * computing)
}

/// The timing of one replica.
#[derive(Clone, Copy)]
pub(crate) struct Timing<'a> {
    pub(crate) plan: &'a Plan,
    /// The cluster as the replica sees it.
    pub(crate) cluster: &'a Cluster,
    pub(crate) loads: &'a [Loads],
}

impl Timing<'_> {
    /// Walks the schedules of a micro-batch.
    fn walked(self) -> Walked {
        let [forward, _, loss] = self.products();
        let (ahead, computed_ahead) = self.pass(|one| (&one.forward, one.begins[0]), &forward);
        let (back, computed_back) = self.backward();
        let computing = computed_ahead + computed_back + mean(&loss);
        let passes = Passes { seconds: [ahead, back], busy: self.busy() };
        Walked { passes, loss: latest(&loss), computing }
    }

    /// Forward and backward through all layers.
    fn passes(self) -> Passes {
        let [forward, ..] = self.products();
        let (ahead, _) = self.pass(|one| (&one.forward, one.begins[0]), &forward);
        Passes { seconds: [ahead, self.backward().0], busy: self.busy() }
    }

    /// Seconds for which attention's messages occupy the busiest ports, by pass.
    fn busy(self) -> [[f64; 2]; 2] {
        let of_group = |one: &Loads| {
            let busy = [&one.forward, &one.backward].map(|work| work.busy(self.cluster));
            busy.map(|ports| ports.map(|seconds| one.layers as f64 * seconds))
        };
        let add = |all: [[f64; 2]; 2], one: [[f64; 2]; 2]| {
            [0, 1].map(|pass| [0, 1].map(|port| all[pass][port] + one[pass][port]))
        };
        self.loads.iter().map(of_group).fold([[0.0; 2]; 2], add)
    }

    /// Seconds of backward through all layers, and of the mean rank's computing in it.
    fn backward(self) -> (f64, f64) {
        let [_, products, _] = self.products();
        self.pass(|one| (&one.backward, one.begins[1]), &products)
    }

    /// Seconds that products with weights and rows between tensor-parallel ranks take every rank: of a layer forward, of a layer backward,
    /// and of the loss with the embedding.
    pub(crate) fn products(self) -> [Vec<f64>; 3] {
        let (operations, between) = (self.plan.products_per_row(), self.between());
        [0, 1, 2].map(|part| {
            let seconds = self.by_rank(operations[part]).into_iter();
            seconds.map(|seconds| seconds + between[part]).collect()
        })
    }

    /// Seconds that rows between tensor-parallel ranks take, in the same three parts.
    pub(crate) fn between(self) -> [f64; 3] {
        let [ahead, back] = self.plan.tensor_collectives();
        [ahead, back, AT_ENDS].map(|number| collectives(self.plan, self.cluster, number))
    }

    /// Seconds that `operations` per row take every rank.
    fn by_rank(self, operations: f64) -> Vec<f64> {
        let second = |(place, rank): (usize, &RankPlan)| {
            let rows = (rank.positions.tokens() * self.plan.micro_batch) as f64;
            rows * operations / self.cluster.rates.products * self.cluster.slowdown_of(place)
        };
        self.plan.of_sequence().enumerate().map(second).collect()
    }

    /// Seconds of a pass through all layers, and of the mean rank's computing. `of` gives a layer group's work in the pass, and whether the
    /// pass starts with such a layer.
    fn pass(self, of: impl Fn(&Loads) -> (&Work, bool), products: &[f64]) -> (f64, f64) {
        let of_group = |one| {
            let (work, begins) = of(one);
            self.layers(work, one.layers as f64, begins, products)
        };
        let add = |(a, b): (f64, f64), (c, d): (f64, f64)| (a + c, b + d);
        self.loads.iter().map(of_group).reduce(add).unwrap_or_default()
    }

    /// Seconds of `layers` equal layers in one pass, and the mean rank's seconds of computing. A rank's lead over another is lost where
    /// layer groups meet: their times add up.
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
