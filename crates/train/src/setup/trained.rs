//! The weights of a plan's model, from a run or from a folder.

use std::path::{Path, PathBuf};

use annulus_experiment::{BYTES, Experiment, ModelSource, Shape};
use annulus_files::hugging_face::{CONFIG, TOKENIZER};
use annulus_model::Weights;
use annulus_plan::Plan;

use crate::checkpoint::{Found, identity, is_checkpoint, named_by};
use crate::folder::is_run;
use crate::setup::initial::{base_of, initial_weights, pretrained};
use crate::setup::saved::weights;
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
    /// What trained the weights, by their checkpoint; `None`: they are not from a run.
    pub by: Option<TrainedBy>,
    /// Warnings: what was wrong but did not keep the weights from being read.
    pub warnings: Vec<String>,
}

/// What trained the weights of a checkpoint.
#[derive(Clone, Debug)]
pub struct TrainedBy {
    /// The experiment.
    pub experiment: Experiment,
    /// The fingerprint of its data.
    pub data: String,
}

/// A whole checkpoint, read and checked once.
#[derive(Clone, Debug)]
pub struct Saved {
    found: Found,
    /// The experiment that trained it.
    by: Experiment,
    warnings: Vec<String>,
}

impl Saved {
    /// The checkpoint `path`, or the newest whole one of the run in the folder `path`.
    ///
    /// # Errors
    /// No checkpoint, or none that is whole.
    pub fn open(path: &Path) -> Result<Saved> {
        let (found, warnings) = named_by(path)?;
        Ok(Saved { by: found.state.experiment()?, found, warnings })
    }

    /// The checkpoint `folder`; `None`: it is not a checkpoint of Annulus.
    ///
    /// # Errors
    /// A checkpoint that is not whole.
    pub fn in_folder(folder: &Path) -> Result<Option<Saved>> {
        is_checkpoint(folder).then(|| Saved::open(folder)).transpose()
    }

    /// Steps of training.
    pub fn step(&self) -> u64 {
        self.found.state.step
    }

    /// The resolved experiment, as YAML.
    pub fn experiment(&self) -> &str {
        &self.found.state.experiment
    }

    /// `experiment` with the checkpoint's own files in place of those that it was trained with, which may have changed or be gone: the
    /// tokenizer, adapters that it continued and, unless it holds only adapters, the model. What the experiment replaces stays; so does the
    /// model of checkpoints that do not say its shape, as in earlier versions.
    pub(crate) fn in_place(&self, mut experiment: Experiment) -> Experiment {
        let Saved { found, by, .. } = self;
        let own = found.folder.join(TOKENIZER);
        let Experiment { data, model, lora, .. } = &mut experiment;
        let is_file = data.tokenizer.is_some() && data.tokenizer() != BYTES && own.is_file();
        if is_file && data.tokenizer == by.data.tokenizer {
            (data.tokenizer, data.tokenizer_hub) = (Some(own.display().to_string()), None);
        }
        if let (Some(lora), Some(trained)) = (lora.as_mut(), &by.lora)
            && lora.path == trained.path
        {
            lora.path = None;
        }
        if lora.is_none()
            && found.state.model.is_some()
            && model.source == by.model.source
            && let ModelSource::Folder { path, hub, .. } = &mut model.source
        {
            (*path, *hub) = (found.folder.clone(), None);
        }
        experiment
    }

    /// The shape of the model in `experiment`, before `extend`, where the checkpoint has it: where that is its own, or the one that it was
    /// trained with.
    pub(crate) fn model_of(&self, experiment: &Experiment) -> Result<Option<Shape>> {
        let source = &experiment.model.source;
        let is_own =
            matches!(source, ModelSource::Folder { path, .. } if *path == self.found.folder);
        if !is_own && *source != self.by.model.source {
            return Ok(None);
        }
        self.found.state.model()
    }
}

/// The folder of weights that `path` means as a model: itself or, of a run, its newest checkpoint.
///
/// # Errors
/// A run without a whole checkpoint.
pub fn model_folder(path: &Path) -> Result<PathBuf> {
    if path.join(CONFIG).is_file() || !is_run(path) {
        return Ok(path.to_owned());
    }
    Ok(named_by(path)?.0.folder)
}

impl Trained {
    /// The weights of `checkpoint` for `plan`'s model.
    ///
    /// # Errors
    /// A checkpoint of another model, or adapters of other weights.
    pub fn of_run(plan: &Plan, setup: &Setup, checkpoint: Saved) -> Result<Trained> {
        let Saved { found, by, warnings } = checkpoint;
        let differing = identity::of_model(plan, &found)?;
        if !differing.is_empty() {
            let (folder, differing) = (found.folder.display(), differing.join("; "));
            return Err(TrainError::checkpoint(
                format!("`{folder}` is of another model: {differing}"),
                "set them back, or name the folder under `model.path` of a file",
            ));
        }
        let weights = weights(&found.folder, base_of(plan), &setup.config)?;
        let weights = weights.all_in(setup.config.dtype)?;
        let Found { folder, state, .. } = found;
        let by = Some(TrainedBy { experiment: by, data: state.data });
        Ok(Trained { weights, folder, step: state.step, by, warnings })
    }

    /// The pretrained weights that a run of `plan` would start from.
    ///
    /// # Errors
    /// A run that starts from fresh weights, and weights that cannot be read.
    pub fn of_folder(plan: &Plan, setup: &Setup) -> Result<Trained> {
        let Some(folder) = pretrained(plan) else {
            let Experiment { name, output, .. } = &plan.experiment;
            let output = output.display();
            return Err(TrainError::configuration(
                format!("`{name}` has no trained weights, which this command needs"),
                format!(
                    "set `model.path`, or give the folder of a run that has trained, as in `{output}`"
                ),
            ));
        };
        let weights = initial_weights(plan, &setup.config)?.all_in(setup.config.dtype)?;
        Ok(Trained { weights, folder: folder.clone(), step: 0, by: None, warnings: Vec::new() })
    }
}
