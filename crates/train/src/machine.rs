//! The computer that a run is on.

use annulus_experiment::Plan;

use crate::pages::return_freed_pages;
use crate::{Result, TrainError};

/// Refuses a run whose ranks, all of which are on this machine or its GPU, cannot fit in its memory; keeps no freed pages for one
/// that takes more than half of its budget.
pub fn check_memory(plan: &Plan) -> Result<()> {
    let needed = plan.ranks.iter().map(|rank| rank.together).fold(0, u64::saturating_add);
    let memory = &plan.experiment.memory;
    match memory.there() {
        Some(there) if needed > there => Err(TrainError::DoesNotFit {
            message: format!(
                "this needs some {} of memory, the {} has {}",
                gibibytes(needed),
                if memory.device.is_some() { "GPU" } else { "machine" },
                gibibytes(there)
            ),
            hint: Some(
                "lower `data.tokens` or `memory.micro_batch`; `annulus plan` shows what takes how \
                 much"
                    .into(),
            ),
        }),
        _ => {
            if memory.device.is_none() && needed > memory.budget() / 2 {
                return_freed_pages();
            }
            Ok(())
        }
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
