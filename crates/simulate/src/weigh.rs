//! Shards in proportion to speed: the remedy against a slow device.

use annulus_experiment::{Experiment, Resolved};
use annulus_plan::{Plan, label};
use annulus_sequence::common_divisor;

use crate::table::CLOSE;
use crate::{Choice, Cluster, Estimate};

/// What unequal shards gain over equal ones, or would gain.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighing {
    /// The strategies of weighted shards in words.
    pub split: String,
    /// Those of equal shards.
    pub equal_split: String,
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
/// The most ranks for which open strategies are chosen anew with other shards: with more it takes long.
const MOST_RANKS: usize = 64;

impl Weighing {
    /// Compares equal shards with the experiment's weights, or with those that device speeds suggest. Strategies that are open are chosen
    /// for either; with many ranks those that are chosen stay. `None` where all devices are alike, or the suggested weights gain nothing.
    pub(crate) fn of(choice: &Choice, resolved: &Resolved) -> Option<Weighing> {
        let own = &resolved.experiment.mesh.weights;
        let suggested = || by_speed(&resolved.experiment, &choice.cluster);
        let weights = own.clone().or_else(suggested)?;
        let step = |weights: Option<Vec<usize>>| step(choice, resolved, weights);
        let (equal_split, equal_fits, equal) = step(None)?;
        let (split, fits, weighed) = step(Some(weights.clone()))?;
        let written = own.is_some();
        let weighing = Weighing { split, equal_split, weights, written, equal, weighed };
        let gains = weighing.gain() > CLOSE && (fits || !equal_fits);
        (written || gains).then_some(weighing)
    }

    /// The speedup of a step over equal shards.
    pub fn gain(&self) -> f64 {
        self.equal / self.weighed
    }

    /// The gain in a line.
    pub(crate) fn to_text(&self) -> String {
        let (weights, gain) = (&self.weights, self.gain());
        let [name, equal] =
            [&self.split, &self.equal_split].map(|name| name.replace(" and ", "` and `"));
        match (self.written, name == equal) {
            (true, true) => {
                format!("  its `mesh.weights` make steps of `{name}` {gain:.2} times as fast")
            }
            (true, false) => format!(
                "  its `mesh.weights` make steps {gain:.2} times as fast: `auto` would take `{equal}` without them"
            ),
            (false, true) => format!(
                "  `mesh.weights: {weights:?}` would make steps of `{name}` {gain:.2} times as fast"
            ),
            (false, false) => format!(
                "  `mesh.weights: {weights:?}` would make steps {gain:.2} times as fast: `auto` would take `{name}` with them"
            ),
        }
    }
}

/// The written or chosen strategies in words with these weights of shards, whether they fit, and seconds of a step; `None`: none can run.
fn step(
    choice: &Choice,
    resolved: &Resolved,
    weights: Option<Vec<usize>>,
) -> Option<(String, bool, f64)> {
    let (cluster, experiment) = (&choice.cluster, &resolved.experiment);
    let (is_open, is_own) = (experiment.attention.is_open(), weights == experiment.mesh.weights);
    if is_open && is_own {
        let (name, fits, estimate) = choice.best().ok()?;
        return Some((name, fits, estimate.step));
    }
    let anew = is_open && experiment.mesh.ranks() <= MOST_RANKS;
    let split = if is_open && !anew { choice.settled(experiment)? } else { experiment.clone() };
    let mut split = cluster.place(split);
    split.mesh.weights = weights;
    let resolved = resolved.with(split);
    if anew {
        let (name, fits, estimate) = Choice::compared(&resolved, cluster).ok()?.best().ok()?;
        return Some((name, fits, estimate.step));
    }
    let (plan, estimate) = Estimate::fastest(Plan::new(&resolved).ok()?, cluster).ok()?;
    Some((plan.strategies(label), choice.fits(&estimate), estimate.step))
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
