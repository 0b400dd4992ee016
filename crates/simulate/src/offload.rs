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
    /// them, moments when nothing else is computed. Beside it, the seconds of it in either pass.
    pub(crate) fn of(plan: &Plan, cluster: &Cluster, passes: [f64; 2]) -> (Offloaded, [f64; 2]) {
        let bytes = [plan.offloaded(), plan.offloaded_moments()];
        let link = match cluster.offload {
            _ if bytes == [0, 0] => return (Offloaded::Nothing, [0.0; 2]),
            None => return (Offloaded::Untimed, [0.0; 2]),
            Some(link) => link,
        };
        let bandwidth = link.bandwidth / cluster.offload_sharers.min(plan.world()).max(1) as f64;
        let seconds = |bytes: u64| match bytes {
            0 => 0.0,
            bytes => link.latency + bytes as f64 / bandwidth,
        };
        let [activations, moments] = bytes.map(seconds);
        let waits = passes.map(|pass| (activations - pass).max(0.0));
        let of_passes = plan.micro_batches as f64 * waits.iter().sum::<f64>();
        (Offloaded::Waits(of_passes + 2.0 * moments), waits)
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
