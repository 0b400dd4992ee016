//! The weights that a plan's model has now.

use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, WeightsFrom};
use annulus_model::Weights;
use annulus_plan::Plan;

use crate::checkpoint::{is_checkpoint, named_by, newest, weights};
use crate::run::folder::is_run;
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
    /// What they were trained by, as their checkpoint says; none: they are not of a run.
    pub by: Option<Experiment>,
    /// What was wrong but did not keep them from being read.
    pub warnings: Vec<String>,
}

/// The step of a checkpoint, or of the newest whole one in a run's folder; none: there is none.
///
/// # Errors
/// When there are some and none is whole.
pub fn saved_step(folder: &Path) -> Result<Option<u64>> {
    if is_checkpoint(folder) {
        return Ok(Some(named_by(folder)?.0.state.step));
    }
    Ok(newest(folder)?.0.map(|found| found.state.step))
}

/// The resolved experiment that a checkpoint is of; none: the folder is none of ours.
///
/// # Errors
/// A checkpoint that is not whole.
pub fn experiment_of(folder: &Path) -> Result<Option<String>> {
    if !is_checkpoint(folder) {
        return Ok(None);
    }
    Ok(Some(named_by(folder)?.0.state.experiment))
}

/// The folder of weights that a path means where a model is asked for: of a run's its newest checkpoint.
///
/// # Errors
/// When the run has no whole one.
pub fn model_folder(path: &Path) -> Result<PathBuf> {
    if path.join("config.json").is_file() || !is_run(path) {
        return Ok(path.to_owned());
    }
    Ok(named_by(path)?.0.folder)
}

impl Trained {
    /// The weights of the checkpoint `run`, or of the newest whole one in the folder of a run, of `plan`'s model.
    ///
    /// # Errors
    /// When there is none, or it is of another model.
    pub fn of_run(plan: &Plan, setup: &Setup, run: &Path) -> Result<Trained> {
        let (found, warnings) = named_by(run)?;
        let differing = identity::of_model(plan, &found)?;
        if !differing.is_empty() {
            let (folder, differing) = (found.folder.display(), differing.join("; "));
            return Err(TrainError::Checkpoint {
                message: format!("`{folder}` is of another model: {differing}"),
                hint: Some("set them back, or name the folder under `model.path` of a file".into()),
            });
        }
        let weights = weights(&found.folder, base_of(plan), &setup.config)?.all()?;
        let (by, step) = (Some(identity::saved(&found)?), found.state.step);
        Ok(Trained { weights, folder: found.folder, step, by, warnings })
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
        let weights = initial_weights(plan, &setup.config)?.all()?;
        Ok(Trained { weights, folder: folder.clone(), step: 0, by: None, warnings: Vec::new() })
    }
}
