//! What the run in an experiment's folder began with, where there is one: the same command goes on with it, whatever has become since of
//! the folders that it names.

use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, ModelSource, parse, read_experiment};

use crate::Result;
use crate::checkpoint::{State, checkpoint_folder, last_checkpoint, step_of};
use crate::folder::RESOLVED;
use crate::setup::trained::model_folder;

/// The checkpoint of the run `base` with which the run in `output` began, if it has begun, and that is still there.
pub fn begun_with(base: &Path, output: &Path) -> Option<PathBuf> {
    let own = output.join(RESOLVED);
    let text = read_experiment(&own).ok()?;
    let own = parse(RESOLVED, &text, &[]).ok()?;
    let ModelSource::Folder { path, hub: None, .. } = own.model.source else { return None };
    step_of(&path)?;
    let run = path.parent()?;
    let is_same = || Some(run.canonicalize().ok()? == base.canonicalize().ok()?);
    (path.is_dir() && (run == base || is_same()?)).then_some(path)
}

/// The folder of weights that `path` means as the model of a run in `output`: itself or, of a run, the checkpoint with which the run in
/// `output` began, else the newest.
///
/// # Errors
/// A run without a whole checkpoint.
pub(super) fn model_of(path: &Path, output: &Path) -> Result<PathBuf> {
    // The newest is hashed, which takes long.
    begun_with(path, output).map_or_else(|| model_folder(path), Ok)
}

/// Takes `lora.path` out of an experiment whose run has a checkpoint: the adapters in that count, and those that it began with need not be
/// there any more, nor fit.
pub(super) fn continued_adapters(experiment: &mut Experiment) -> Option<PathBuf> {
    experiment.lora.as_ref()?.path.as_ref()?;
    let folder = checkpoint_folder(&experiment.output, last_checkpoint(&experiment.output)?);
    let saved = State::read(&folder).ok()?.experiment().ok()?;
    let (then, now) = (saved.lora.as_ref()?, experiment.lora.as_mut()?);
    // Where they are not there, another difference is said when the run is resumed.
    let is_same = then == now || then.path == now.path && !now.path.as_ref()?.exists();
    now.path.take_if(|_| is_same)
}
