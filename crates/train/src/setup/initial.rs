//! The weights that a run starts from.

use std::path::{Path, PathBuf};

use annulus_experiment::{Lora, ModelSource, WeightsFrom};
use annulus_model::{Config, Llama, Specification, Stored, stored, stored_adapter};
use annulus_plan::Plan;
use candle_core::DType;

use crate::checkpoint::beside;
use crate::setup::weights::{InitialWeights, Layer};
use crate::{Result, TrainError};

/// All of them: what is trained f32, since masters are and a pretrained weight of 32 bits is not narrowed on the way; what is not in
/// the type that it is computed with.
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

/// Holds the files of a pretrained model's weights to the model, by their headers: nothing else is read.
///
/// # Errors
/// What is wrong with one, or with how they fit.
pub(crate) fn check_stored(plan: &Plan, config: &Config) -> Result<()> {
    let Some(folder) = pretrained(plan) else { return Ok(()) };
    base(folder, config).map(|_| ())
}

/// The weights beside which adapters lie.
pub(crate) fn base(folder: &Path, config: &Config) -> Result<Stored> {
    let own = Llama::specification(config).into_iter();
    let own: Vec<_> = own.filter(|own| !Lora::is_adapter(&own.name)).collect();
    let dtype = |of: &Specification| if of.trained { DType::F32 } else { config.dtype };
    Ok(stored(folder, &own, &dtype)?)
}

/// Holds the weights in `base` to what a checkpoint of adapters says of those that it learned beside. PEFT's own folders say no more
/// than a name.
///
/// # Errors
/// When they are others.
pub fn check_beside(adapter: &Path, base: &Path) -> Result<()> {
    let Some(wanted) = beside(adapter)? else { return Ok(()) };
    if annulus_model::fingerprint(base)? == wanted {
        return Ok(());
    }
    let (adapter, base) = (adapter.display(), base.display());
    Err(TrainError::Checkpoint {
        message: format!("`{base}` holds other weights than `{adapter}` learned beside"),
        hint: Some("give the folder of those; `adapter_config.json` names it".into()),
    })
}

/// The folder of the weights beside which a run's adapters lie; `None`: it has none.
pub(crate) fn base_of(plan: &Plan) -> Option<&Path> {
    plan.experiment.lora.as_ref().and(pretrained(plan)).map(PathBuf::as_path)
}

/// The folder whose weights a run starts from.
pub(crate) fn pretrained(plan: &Plan) -> Option<&PathBuf> {
    match &plan.experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => Some(path),
        ModelSource::Folder { weights: WeightsFrom::Random, .. } | ModelSource::Inline(_) => None,
    }
}
