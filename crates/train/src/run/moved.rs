//! Weights that a run begins with and a resume names by another path: they must be the same.

use annulus_plan::Plan;

use crate::checkpoint::{Found, identity};
use crate::folder::manifest::{Manifest, UNKNOWN};
use crate::setup::initial::{initial_weights, pretrained};
use crate::{Result, Setup, TrainError};

/// Keys that name the weights that a run begins with.
const KEYS: [&str; 2] = ["model.path", "lora.path"];

/// Checks that weights which `plan` names by another path than the checkpoint are those that its run began with. A fork began with those
/// of a checkpoint, which no key names; where the run does not know what it began with, nothing is checked.
///
/// # Errors
/// Other weights, or ones that cannot be read.
pub(crate) fn check_weights(plan: &Plan, setup: &Setup, found: &Found) -> Result<()> {
    let moved = identity::moved(plan, found)?;
    let Some(one) = moved.iter().find(|one| KEYS.contains(&one.key.as_str())) else {
        return Ok(());
    };
    let (key, was, is) = (&one.key, one.was(), one.is());
    let made = Manifest::open(&plan.experiment.output)?;
    let began = made.filter(|made| made.fork.is_none() && made.weights != UNKNOWN);
    let (Some(began), Some(_)) = (began, pretrained(plan)) else { return Ok(()) };
    let now = initial_weights(plan, &setup.config)?.hash()?;
    if now == began.weights {
        return Ok(());
    }
    let (run, then) = (plan.experiment.output.display(), began.weights);
    Err(TrainError::checkpoint(
        format!(
            "`{run}` began with the weights of `{key}: {was}`, and `{is}` has others: their hash was `{then}` and is `{now}`"
        ),
        format!(
            "set `{key}` back to `{was}`; or set another `output` to begin another run, with `--from {run}` where it continues with this one's \
             weights"
        ),
    ))
}
