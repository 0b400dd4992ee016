//! Shards in proportion to speed: the remedy against a slow device.

use annulus_experiment::{Experiment, Resolved};
use annulus_plan::{Plan, label};

use crate::{Choice, Cluster, Estimate};

/// What unequal shards gain over equal ones, or would gain.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighing {
    /// The strategies in words.
    pub split: String,
    /// The weights of shards, as in `mesh.weights`, by rank of a sequence.
    pub weights: Vec<usize>,
    /// Whether the experiment has these weights already.
    pub written: bool,
    /// Seconds of a step with equal shards.
    pub equal: f64,
    /// Seconds of a step with weighted shards.
    pub weighed: f64,
}

/// The weight of the fastest device.
const PARTS: f64 = 60.0;

impl Weighing {
    /// Compares equal shards with the experiment's weights, or with those that device speeds suggest, under the written or chosen
    /// strategies; `None` where all devices are alike.
    pub(crate) fn of(choice: &Choice, resolved: &Resolved) -> Option<Weighing> {
        let (cluster, experiment) = (&choice.cluster, &resolved.experiment);
        let open = experiment.attention.is_open();
        let split = if open { choice.settled(experiment)? } else { experiment.clone() };
        let written = experiment.mesh.weights.is_some();
        let suggested = || by_speed(experiment, cluster);
        let weights = experiment.mesh.weights.clone().or_else(suggested)?;
        let step = |weights: Option<Vec<usize>>| {
            let mut experiment = cluster.place(split.clone());
            experiment.mesh.weights = weights;
            let plan = Plan::new(&resolved.with(experiment)).ok()?;
            let (plan, estimate) = Estimate::fastest(plan, cluster).ok()?;
            Some((plan.strategies(label), estimate.step))
        };
        let ((_, equal), (split, weighed)) = (step(None)?, step(Some(weights.clone()))?);
        Some(Weighing { split, weights, written, equal, weighed })
    }

    /// The speedup of a step over equal shards.
    pub fn gain(&self) -> f64 {
        self.equal / self.weighed
    }

    /// The gain in a line.
    pub(crate) fn to_text(&self) -> String {
        let (weights, gain, name) = (&self.weights, self.gain(), &self.split);
        if self.written {
            format!("  its `mesh.weights` make steps of `{name}` {gain:.2} times as fast")
        } else {
            format!(
                "  `mesh.weights: {weights:?}` would make steps of `{name}` {gain:.2} times as fast"
            )
        }
    }
}

/// Weights of shards by speed; with replicas, the slowest device of a place counts.
fn by_speed(experiment: &Experiment, cluster: &Cluster) -> Option<Vec<usize>> {
    let mesh = &experiment.mesh;
    let slowest = |place: usize| {
        let first = (0..mesh.data).map(|replica| mesh.replica(replica).rank(place));
        let devices = first.flat_map(|first| first..first + mesh.tensor);
        devices.map(|device| cluster.slowdown_of(device)).fold(0.0, f64::max)
    };
    let slowdown: Vec<f64> = (0..mesh.sequence).map(slowest).collect();
    let fastest = slowdown.iter().copied().fold(f64::INFINITY, f64::min);
    let part = |slowdown: &f64| (PARTS * fastest / slowdown).round() as usize;
    let weights: Vec<usize> = slowdown.iter().map(part).collect();
    let unit = weights.iter().copied().fold(0, common_divisor);
    let alike = weights.iter().all(|weight| *weight == weights[0]);
    (!alike).then(|| weights.iter().map(|weight| weight / unit).collect())
}

/// The greatest common divisor of two numbers.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
