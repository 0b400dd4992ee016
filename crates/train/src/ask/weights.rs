//! The weights that a plan's model has now.

use std::path::{Path, PathBuf};

use annulus_experiment::WeightsFrom;
use annulus_model::Weights;
use annulus_plan::Plan;

use crate::checkpoint::{newest, weights};
use crate::run::identity;
use crate::setup::initial::{base_of, initial_weights, pretrained};
use crate::{Result, Setup, TrainError};

/// Weights on the host, f32 but for those beside which adapters lie, and where they were read from.
#[derive(Debug)]
pub struct Trained {
    /// By name.
    pub weights: Weights,
    /// The folder.
    pub folder: PathBuf,
    /// Steps of training that they had in the run; 0: they are not of a run.
    pub step: u64,
    /// What was wrong but did not keep them from being read.
    pub warnings: Vec<String>,
}

/// The step of the newest whole checkpoint in `run`; none: there is none.
///
/// # Errors
/// When there are some and none is whole.
pub fn last_saved(run: &Path) -> Result<Option<u64>> {
    Ok(newest(run)?.0.map(|found| found.state.step))
}

impl Trained {
    /// The weights of the newest whole checkpoint in `run`, the folder of a run of `plan`'s model.
    ///
    /// # Errors
    /// When there is none, or it is of another model.
    pub fn of_run(plan: &Plan, setup: &Setup, run: &Path) -> Result<Trained> {
        let (found, warnings) = newest(run)?;
        let found = found.ok_or_else(|| TrainError::Checkpoint {
            message: format!("`{}` has no checkpoint", run.display()),
            hint: Some("train first; or give the experiment instead of the folder".into()),
        })?;
        let differing = identity::of_model(plan, &found.state.experiment)?;
        if !differing.is_empty() {
            let (folder, differing) = (found.folder.display(), differing.join("; "));
            return Err(TrainError::Checkpoint {
                message: format!("`{folder}` is of another model: {differing}"),
                hint: Some("set them back, or name the folder under `model.path` of a file".into()),
            });
        }
        let weights = weights(&found.folder, base_of(plan), &setup.config)?;
        Ok(Trained { weights, folder: found.folder, step: found.state.step, warnings })
    }

    /// The weights that a run of `plan` would start from, which must be of a folder.
    ///
    /// # Errors
    /// When they are fresh, or cannot be read.
    pub fn of_folder(plan: &Plan, setup: &Setup) -> Result<Trained> {
        let Some(folder) = pretrained(plan) else {
            let word = WeightsFrom::Random.word();
            let output = plan.experiment.output.display();
            return Err(TrainError::Configuration {
                message: format!("weights are {word}: there is nothing to ask of them"),
                hint: Some(format!(
                    "set `model.path`, or give the folder of a run that has trained, as in `{output}`"
                )),
            });
        };
        let weights = initial_weights(plan, &setup.config)?;
        Ok(Trained { weights, folder: folder.clone(), step: 0, warnings: Vec::new() })
    }
}
