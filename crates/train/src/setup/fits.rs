//! The computer that a run is on.

use annulus_plan::Plan;

use crate::Result;
use crate::setup::pages::return_freed_pages;

/// Refuses a run that cannot fit ([`Plan::misfit`]); keeps no freed pages for one that takes more than half of its budget.
///
/// # Errors
/// Then, with what is needed and what there is.
pub fn check_memory(plan: &Plan) -> Result<()> {
    if let Some(misfit) = plan.misfit() {
        return Err(misfit.into());
    }
    let (memory, host) = (&plan.experiment.memory, &plan.experiment.host);
    if host.device.is_none() && plan.needed() > memory.budget(host) / 2 {
        return_freed_pages();
    }
    Ok(())
}
