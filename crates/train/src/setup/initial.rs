//! The weights that a run starts from.

use std::path::{Path, PathBuf};

use annulus_experiment::{Lora, ModelSource, WeightsFrom};
use annulus_model::{Config, Llama, Specification, Stored, stored, stored_adapter};
use annulus_plan::Plan;
use candle_core::DType;

use crate::checkpoint::beside;
use crate::setup::weights::{InitialWeights, Layer};
use crate::{Result, TrainError};

/// All weights that a run starts from. Trained ones are f32, since masters are, and so pretrained f32 weights are not rounded; untrained
/// ones are in the dtype of computation.
pub(crate) fn initial_weights(plan: &Plan, config: &Config) -> Result<InitialWeights> {
    let (all, seed) = (Llama::specification(config), plan.experiment.seed);
    let Some(folder) = pretrained(plan) else {
        return Ok(InitialWeights::of(config, vec![Layer::fresh(config, seed, all)]));
    };
    let Some(lora) = &plan.experiment.lora else {
        let stored = stored(folder, &all, &|_| DType::F32)?;
        return Ok(InitialWeights::of(config, vec![Layer::Stored(stored)]));
    };
    let adapters = if let Some(path) = &lora.path {
        check_beside(path, folder)?;
        Layer::Stored(stored_adapter(path, &all, DType::F32)?)
    } else {
        let adapters = all.into_iter().filter(|own| Lora::is_adapter(&own.name));
        Layer::fresh(config, seed, adapters.collect())
    };
    Ok(InitialWeights::of(config, vec![adapters, Layer::Stored(base(folder, config)?)]))
}

/// Checks the files of a pretrained model's weights against the model, reading only their headers.
///
/// # Errors
/// A bad file, or files that do not fit the model.
pub(crate) fn check_stored(plan: &Plan, config: &Config) -> Result<()> {
    let Some(folder) = pretrained(plan) else { return Ok(()) };
    base(folder, config).map(|_| ())
}

/// The base weights in `folder`, beside which adapters lie.
pub(crate) fn base(folder: &Path, config: &Config) -> Result<Stored> {
    let own = Llama::specification(config).into_iter();
    let own: Vec<_> = own.filter(|own| !Lora::is_adapter(&own.name)).collect();
    let dtype = |of: &Specification| if of.trained { DType::F32 } else { config.dtype };
    Ok(stored(folder, &own, &dtype)?)
}

/// Checks that the weights in `base` are those that a checkpoint's adapters were trained beside. PEFT's own folders give no more than a
/// name.
///
/// # Errors
/// Weights other than those.
pub fn check_beside(adapter: &Path, base: &Path) -> Result<()> {
    let Some(wanted) = beside(adapter)? else { return Ok(()) };
    let of_tensors = wanted.starts_with(annulus_model::OF_TENSORS);
    let found = if of_tensors {
        annulus_model::fingerprint(base)?
    } else {
        annulus_model::fingerprint_of_files(base)?
    };
    if found == wanted {
        return Ok(());
    }
    let (adapter, base) = (adapter.display(), base.display());
    let (or, hint) = if of_tensors {
        ("", "give the folder of those weights; `adapter_config.json` names it")
    } else {
        // An earlier version kept the hash of files.
        (
            ", or on the same in other files",
            "give the very files; `adapter_config.json` names their folder",
        )
    };
    Err(TrainError::checkpoint(
        format!(
            "the adapters in `{adapter}` were trained on other base weights than those in `{base}`{or}"
        ),
        hint,
    ))
}

/// The folder of the base weights beside which a run's adapters lie; `None`: it has no adapters.
pub(crate) fn base_of(plan: &Plan) -> Option<&Path> {
    plan.experiment.lora.as_ref().and(pretrained(plan)).map(PathBuf::as_path)
}

/// The folder of pretrained weights that a run starts from; `None`: its weights are fresh.
pub(crate) fn pretrained(plan: &Plan) -> Option<&PathBuf> {
    match &plan.experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => Some(path),
        ModelSource::Folder { weights: WeightsFrom::Random, .. } | ModelSource::Inline(_) => None,
    }
}
