//! A run that begins from another run's checkpoint: with its weights, its count of steps and, unless asked not to, its optimizer state;
//! everything but the model may differ.

use std::path::Path;

use annulus_experiment::read_saved_config;
use annulus_plan::Plan;

use crate::checkpoint::{identity, named_by, steps};
use crate::error::failure;
use crate::folder::manifest::Fork;
use crate::setup::initial::base_of;
use crate::setup::saved::load;
use crate::setup::start::Start;
use crate::{Result, Setup, TrainError};

impl Fork {
    /// The state to begin with, and what is wrong with newer checkpoints.
    ///
    /// # Errors
    /// No checkpoint, or one of another model or after the last step of `plan`.
    pub(crate) fn start(&self, plan: &Plan, setup: &Setup) -> Result<(Start, Vec<String>)> {
        let (found, warnings) = named_by(&self.from)?;
        let folder = found.folder.display();
        let refused = |message: String, hint: &str| TrainError::checkpoint(message, hint);
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

    /// Whether both begin alike, however their paths are written.
    fn is(&self, other: &Fork) -> bool {
        let [own, others] = [self, other].map(|fork| fork.from.canonicalize());
        let is_same = self.from == other.from
            || own.ok().zip(others.ok()).is_some_and(|(own, others)| own == others);
        is_same && self.fresh_optimizer == other.fresh_optimizer
    }

    /// An error if `folder` holds a run that began elsewhere: it would resume from its own checkpoint.
    pub(crate) fn refuse_another(&self, folder: &Path, began: Option<&Fork>) -> Result<()> {
        let read = |error| failure("read", folder, &error);
        if began.is_some_and(|began| self.is(began)) || steps(folder).map_err(read)?.is_empty() {
            return Ok(());
        }
        let folder = folder.display();
        let began = began.map_or_else(
            || "did not begin with `--from`".to_owned(),
            |began| format!("began from `{}`", began.from.display()),
        );
        Err(TrainError::checkpoint(
            format!("`{folder}` is a run already, which {began}"),
            "set another `output`, or leave `--from` out to resume it",
        ))
    }
}

/// An error if sequences are longer than the checkpoint's model was trained for, as for pretrained weights.
fn refuse_longer(plan: &Plan, checkpoint: &Path) -> Result<()> {
    let experiment = &plan.experiment;
    let trained = read_saved_config(checkpoint)?.trained_for();
    let tokens = experiment.data.tokens;
    match trained.filter(|_| !experiment.model.allow_longer) {
        Some(trained) if tokens > trained => Err(TrainError::configuration(
            format!(
                "sequences of {tokens} tokens are longer than the {trained} that `{}` was trained for",
                checkpoint.display()
            ),
            format!(
                "use at most {trained} tokens with `--from`; or begin with its weights: `model.path: {}` and \
                 `extend: {{rope: yarn, tokens: {tokens}}}`, or `model.allow_longer: true` to train without",
                checkpoint.display()
            ),
        )),
        _ => Ok(()),
    }
}
