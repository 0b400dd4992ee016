//! What offloading activations and moments adds to a step.

use annulus_plan::Plan;

use crate::Cluster;

/// The wait of a step for what is offloaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offloaded {
    /// Nothing is offloaded.
    Nothing,
    /// The cluster does not describe the link to the disk.
    Untimed,
    /// Seconds of waiting.
    Waits(f64),
}

impl Offloaded {
    /// The wait of the busiest rank, whose passes of a micro-batch take `passes` seconds, forward and backward: activations travel during
    /// them, moments when nothing else is computed.
    pub(crate) fn of(plan: &Plan, cluster: &Cluster, passes: [f64; 2]) -> Offloaded {
        let bytes = [plan.offloaded(), plan.offloaded_moments()];
        let Some(link) = cluster.offload else {
            return if bytes == [0, 0] { Offloaded::Nothing } else { Offloaded::Untimed };
        };
        let seconds = |bytes: u64| match bytes {
            0 => 0.0,
            bytes => link.latency + bytes as f64 / link.bandwidth,
        };
        let [activations, moments] = bytes.map(seconds);
        let waits = passes.map(|pass| (activations - pass).max(0.0)).iter().sum::<f64>();
        match bytes {
            [0, 0] => Offloaded::Nothing,
            _ => Offloaded::Waits(plan.micro_batches as f64 * waits + 2.0 * moments),
        }
    }

    /// Seconds of waiting; `None` where they are unknown.
    pub fn known(self) -> Option<f64> {
        match self {
            Offloaded::Nothing => Some(0.0),
            Offloaded::Untimed => None,
            Offloaded::Waits(seconds) => Some(seconds),
        }
    }

    /// Seconds, or 0 where they are unknown.
    pub fn seconds(self) -> f64 {
        self.known().unwrap_or_default()
    }
}
