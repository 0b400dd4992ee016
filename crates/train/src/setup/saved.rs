//! The state that a checkpoint holds.

use std::path::Path;
use std::sync::Arc;

use annulus_model::{Config, Llama, stored, stored_adapter};
use candle_core::DType;

use crate::Result;
use crate::checkpoint::{Found, Kept, OPTIMIZER, State};
use crate::setup::initial::{self, check_beside};
use crate::setup::start::Start;
use crate::setup::weights::{InitialWeights, Layer};

/// The weights that a checkpoint stands for, as they were computed with, not their masters: f32, except the untrained ones of `base`.
///
/// # Errors
/// Files that cannot be used, and adapters that were trained beside other weights than those of `base`.
pub(crate) fn weights(
    folder: &Path,
    base: Option<&Path>,
    config: &Config,
) -> Result<InitialWeights> {
    let specification = Llama::specification(config);
    let layers = match base {
        None => vec![Layer::Stored(stored(folder, &specification, &|_| DType::F32)?)],
        Some(base) => {
            check_beside(folder, base)?;
            let adapters = stored_adapter(folder, &specification, DType::F32)?;
            let base = initial::base(base, config)?;
            vec![Layer::Stored(adapters), Layer::Stored(base)]
        }
    };
    Ok(InitialWeights::of(config, layers))
}

/// Parameters and optimizer state of a checkpoint, which may hold only adapters of `base`.
pub(crate) fn load(found: &Found, base: Option<&Path>, config: &Config) -> Result<Start> {
    let mut weights = weights(&found.folder, base, config)?;
    let kept = Arc::new(Kept::open(&found.folder.join(OPTIMIZER), config)?);
    if config.dtype != DType::F32 {
        weights = weights.beneath(Layer::Masters(kept.clone()));
    }
    let since = found.state.moments.unwrap_or_default();
    let State { step, tokens, .. } = found.state;
    Ok(Start { step, tokens, weights, moments: Some(kept), since })
}
