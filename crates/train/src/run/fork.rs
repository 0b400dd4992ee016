//! A run that begins where another is: with its weights, its count of steps and, unless asked not to, the state of its
//! optimizer; everything but the model may differ.

use std::path::PathBuf;

use annulus_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{load, named_by};
use crate::run::identity;
use crate::setup::initial::base_of;
use crate::setup::start::Start;
use crate::{Result, Setup, TrainError};

/// Where a run begins, if not with its own weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// A run's folder, whose newest checkpoint is meant, or a checkpoint.
    pub from: PathBuf,
    /// Whether the optimizer begins anew.
    pub fresh_optimizer: bool,
}

impl Fork {
    /// The state to begin with, and what is wrong with checkpoints that are newer.
    ///
    /// # Errors
    /// When there is no checkpoint, or it is of another model or behind the last step of `plan`.
    pub(crate) fn start(&self, plan: &Plan, setup: &Setup) -> Result<(Start, Vec<String>)> {
        let (found, warnings) = named_by(&self.from)?;
        let folder = found.folder.display();
        let refused = |message: String, hint: &str| TrainError::Checkpoint {
            message,
            hint: Some(hint.to_owned()),
        };
        let differing = identity::of_model(plan, &found)?;
        if !differing.is_empty() {
            let message = format!("`{folder}` is of another model: {}", differing.join("; "));
            let hint = "write the same `model`, `extend` and `lora`; \
                        or set `model.path` to it, to begin another run with its weights";
            return Err(refused(message, hint));
        }
        let (done, last) = (found.state.step, plan.experiment.last_step());
        if done >= last {
            let message = format!("`{folder}` has {done} steps, and the last step here is {last}");
            return Err(refused(
                message,
                "set more `schedule.steps`: they count from the first run's beginning",
            ));
        }
        let start = load(&found, base_of(plan), &setup.config)?;
        Ok((if self.fresh_optimizer { start.anew() } else { start }, warnings))
    }
}
