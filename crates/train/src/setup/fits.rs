//! The memory of the machine that a run is on.

use annulus_plan::Plan;

use crate::Result;
use crate::setup::pages::return_freed_pages;

/// An error if a run cannot fit ([`Plan::misfit`]); one that takes more than half of the memory keeps no freed pages.
///
/// # Errors
/// A run that cannot fit, with the memory needed and the memory there is.
pub fn check_memory(plan: &Plan) -> Result<()> {
    if let Some(misfit) = plan.misfit() {
        return Err(misfit.into());
    }
    let tight = plan.room().is_some_and(|room| room.needed > room.there.bytes / 2);
    if plan.experiment.host.device.is_none() && tight {
        return_freed_pages();
    }
    Ok(())
}
