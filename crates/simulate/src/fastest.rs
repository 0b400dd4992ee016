//! The settings that trade time for memory, where a plan for a described cluster leaves them open: the fastest that fit.

use annulus_experiment::Settled;
use annulus_plan::Plan;
use annulus_yaml::Problems;

use crate::choose::enough_devices;
use crate::estimate::{loads, slowest_step, walked};
use crate::table::CLOSE;
use crate::{Cluster, Estimate};

/// Steps within this multiple of each other are printed as equal.
const EQUAL: f64 = 1.0005;

impl Estimate {
    /// `plan` with the fastest of the settings that it leaves open and that fit, and the estimate of its step on `cluster`, a described one;
    /// of settings that are about as fast, the first that the plan prefers. If another is as fast as that one and needs over 1 % less
    /// memory, the one with the least is taken.
    ///
    /// # Errors
    /// Those of [`Estimate::of`].
    pub fn fastest(mut plan: Plan, cluster: &Cluster) -> Result<(Plan, Estimate), Problems> {
        enough_devices(&plan.experiment, cluster)?;
        let seen = cluster.of_replica(&plan.experiment.mesh, 0);
        let loads = loads(&plan, &seen);
        let is_described = plan.experiment.host.cluster.is_some();
        let open = if is_described { plan.fitting() } else { Vec::new() };
        if open.len() > 1 {
            let mut steps = Vec::new();
            // Walking the schedules takes long; only recomputation changes what they take.
            for alike in open.chunk_by(|one, other| one.recompute == other.recompute) {
                let mut of = plan.clone();
                of.memory = alike[0];
                let walked = walked(&of, cluster, &loads);
                for memory in alike {
                    of.memory = *memory;
                    steps.push(slowest_step(&of, cluster, &walked));
                }
            }
            let taken = taken(&plan, &open, &steps);
            if taken != plan.memory {
                plan = plan.with(taken);
            }
        }
        let estimate = Estimate::of_loads(&plan, cluster, &seen, &loads);
        Ok((plan, estimate))
    }
}

/// The one of the open settings that is taken, where a step under each takes so many seconds.
fn taken(plan: &Plan, open: &[Settled], steps: &[f64]) -> Settled {
    let fastest = steps.iter().copied().fold(f64::INFINITY, f64::min);
    let preferred = steps.iter().position(|step| *step <= CLOSE * fastest).unwrap_or_default();
    let as_fast = (0..open.len()).filter(|&at| steps[at] <= EQUAL * steps[preferred]);
    let held = |at: usize| plan.held_on_cluster(open[at]);
    let least = as_fast.min_by_key(|&at| held(at)).unwrap_or(preferred);
    let is_less = held(least) as f64 * CLOSE < held(preferred) as f64;
    open[if is_less { least } else { preferred }]
}
