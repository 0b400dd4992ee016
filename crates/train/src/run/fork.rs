//! A run that begins where another is: with its weights, its count of steps and, unless asked not to, the state of its
//! optimizer; everything but the model may differ.

use std::path::{Path, PathBuf};

use annulus_experiment::{Scaling, read_config};
use annulus_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{load, named_by, steps};
use crate::run::folder::failure;
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
        refuse_longer(plan, &found.folder)?;
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

    /// Refuses to begin where a run is already that began elsewhere: it would go on from its own checkpoint.
    pub(crate) fn refuse_another(&self, folder: &Path, began: Option<&Fork>) -> Result<()> {
        let read = |error| failure("read", folder, &error);
        if began == Some(self) || steps(folder).map_err(read)?.is_empty() {
            return Ok(());
        }
        let folder = folder.display();
        let began = began.map_or_else(
            || "did not begin with `--from`".to_owned(),
            |began| format!("began from `{}`", began.from.display()),
        );
        Err(TrainError::Checkpoint {
            message: format!("`{folder}` is a run already, which {began}"),
            hint: Some("set another `output`, or leave `--from` out to go on with it".to_owned()),
        })
    }
}

/// Holds sequences to the length that the checkpoint's model was trained for, as those of pretrained weights are.
fn refuse_longer(plan: &Plan, checkpoint: &Path) -> Result<()> {
    let experiment = &plan.experiment;
    let model = read_config(checkpoint)?;
    let follows = matches!(model.rope.scaling, Scaling::Dynamic { .. });
    let trained = model.max_position_embeddings.filter(|_| !follows);
    let tokens = experiment.data.tokens;
    match trained.filter(|_| !experiment.model.allow_longer) {
        Some(trained) if tokens > trained => Err(TrainError::Configuration {
            message: format!(
                "sequences of {tokens} tokens are longer than the {trained} that `{}` was trained for",
                checkpoint.display()
            ),
            hint: Some(format!(
                "use at most {trained} tokens with `--from`; or begin with its weights: `model.path: {}` and \
                 `extend: {{rope: yarn, tokens: {tokens}}}`, or `model.allow_longer: true` to train without",
                checkpoint.display()
            )),
        }),
        _ => Ok(()),
    }
}
