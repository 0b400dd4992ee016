//! The memory of the machine that a run is on.

use annulus_plan::Plan;

use crate::Result;
use crate::setup::pages::return_freed_pages;

/// An error if a run cannot fit ([`Plan::misfit`]).
pub(crate) fn fits(plan: &Plan) -> Result<()> {
    plan.misfit().map_or(Ok(()), |misfit| Err(misfit.into()))
}

/// An error if a run cannot fit ([`Plan::misfit`]); one that takes more than half of the memory keeps no freed pages.
///
/// # Errors
/// A run that cannot fit, with the memory needed and the memory there is.
pub fn check_memory(plan: &Plan) -> Result<()> {
    fits(plan)?;
    let tight = plan.memory_need().is_some_and(|need| need.needed > need.limit.bytes / 2);
    if plan.experiment.host.gpu_memory.is_none() && tight {
        return_freed_pages();
    }
    Ok(())
}
