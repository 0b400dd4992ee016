//! Activations and moments that wait elsewhere: what their ways there and back add to a step.

use annulus_plan::Plan;

use crate::Cluster;

/// What a step waits for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offloaded {
    /// Nothing is offloaded.
    Nothing,
    /// The cluster does not say how fast they travel.
    Untimed,
    /// Seconds.
    Waits(f64),
}

impl Offloaded {
    /// Of the busiest rank, whose passes of a micro-batch take so long, forward and backward: activations travel meanwhile, moments
    /// when there is nothing else to do.
    pub(crate) fn of(plan: &Plan, cluster: &Cluster, passes: [f64; 2]) -> Offloaded {
        let bytes = [plan.offloaded(), plan.offloaded_moments()];
        let Some(link) = cluster.offload else {
            return if bytes == [0, 0] { Offloaded::Nothing } else { Offloaded::Untimed };
        };
        let [activations, moments] = bytes.map(|bytes| bytes as f64 / link.bandwidth);
        let waits = passes.map(|pass| (activations - pass).max(0.0)).iter().sum::<f64>();
        match bytes {
            [0, 0] => Offloaded::Nothing,
            _ => Offloaded::Waits(plan.micro_batches as f64 * waits + 2.0 * moments),
        }
    }

    /// Seconds, where they are known.
    pub fn known(self) -> Option<f64> {
        match self {
            Offloaded::Nothing => Some(0.0),
            Offloaded::Untimed => None,
            Offloaded::Waits(seconds) => Some(seconds),
        }
    }

    /// The same, else 0.
    pub fn seconds(self) -> f64 {
        self.known().unwrap_or_default()
    }
}
