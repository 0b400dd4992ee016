//! The weights of a plan's model, from a run or from a folder.

use crate::setup::saved::weights;
use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, WeightsFrom};
use annulus_model::Weights;
use annulus_plan::Plan;

use crate::checkpoint::{identity, is_checkpoint, named_by, newest};
use crate::folder::is_run;
use crate::setup::initial::{base_of, initial_weights, pretrained};
use crate::{Result, Setup, TrainError};

/// Trained weights on the host, in the dtype of computation, with their origin.
#[derive(Debug)]
pub struct Trained {
    /// The weights by name.
    pub weights: Weights,
    /// The folder that the weights were read from.
    pub folder: PathBuf,
    /// Steps of training that the weights had in a run; 0: they are not from a run.
    pub step: u64,
    /// The experiment that trained the weights, from their checkpoint; `None`: they are not from a run.
    pub by: Option<Experiment>,
    /// Warnings: what was wrong but did not keep the weights from being read.
    pub warnings: Vec<String>,
}

/// The step of a checkpoint, or of the newest whole one in a run's folder; `None`: there is none.
///
/// # Errors
/// Checkpoints none of which is whole.
pub fn saved_step(folder: &Path) -> Result<Option<u64>> {
    if is_checkpoint(folder) {
        return Ok(Some(named_by(folder)?.0.state.step));
    }
    Ok(newest(folder)?.0.map(|found| found.state.step))
}

/// The resolved experiment of a checkpoint; `None`: the folder is not a checkpoint of Annulus.
///
/// # Errors
/// A checkpoint that is not whole.
pub fn experiment_of(folder: &Path) -> Result<Option<String>> {
    if !is_checkpoint(folder) {
        return Ok(None);
    }
    Ok(Some(named_by(folder)?.0.state.experiment))
}

/// The folder of weights that `path` means as a model: itself or, of a run, its newest checkpoint.
///
/// # Errors
/// A run without a whole checkpoint.
pub fn model_folder(path: &Path) -> Result<PathBuf> {
    if path.join("config.json").is_file() || !is_run(path) {
        return Ok(path.to_owned());
    }
    Ok(named_by(path)?.0.folder)
}

impl Trained {
    /// The weights of the checkpoint `run`, or of the newest whole one in the run folder `run`, for `plan`'s model.
    ///
    /// # Errors
    /// No whole checkpoint, or one of another model.
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
        let weights = weights(&found.folder, base_of(plan), &setup.config)?;
        let weights = weights.all_in(setup.config.dtype)?;
        let (by, step) = (Some(identity::saved(&found)?), found.state.step);
        Ok(Trained { weights, folder: found.folder, step, by, warnings })
    }

    /// The pretrained weights that a run of `plan` would start from.
    ///
    /// # Errors
    /// A run that starts from fresh weights, and weights that cannot be read.
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
        let weights = initial_weights(plan, &setup.config)?.all_in(setup.config.dtype)?;
        Ok(Trained { weights, folder: folder.clone(), step: 0, by: None, warnings: Vec::new() })
    }
}
