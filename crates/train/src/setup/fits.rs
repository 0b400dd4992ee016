//! The computer that a run is on.

use annulus_plan::Plan;

use crate::Result;
use crate::setup::pages::return_freed_pages;

/// Refuses a run that cannot fit ([`Plan::misfit`]); keeps no freed pages for one that takes more than half of what there is.
///
/// # Errors
/// Then, with what is needed and what there is.
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
