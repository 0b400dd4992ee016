//! What a model predicts at rows of logits, and its loss there.

use candle_core::{DType, Result, Storage, Tensor, bail};

use super::check_targets;
use crate::gpu::operators;
use crate::rows::elements;
use crate::{Backend, Pool};

/// The model's loss and prediction at a row of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// The loss `-log softmax(logits)[target]`, natural log.
    pub loss: f64,
    /// The class of the highest logit, the smallest class among equals.
    pub class: u32,
}

/// The loss and prediction at each row of `logits` f32 [R, V], whose targets are classes. The host waits for them.
///
/// # Errors
/// When shapes do not fit, and where a target is not below V.
pub fn predictions(backend: &Backend, logits: &Tensor, targets: &[i64]) -> Result<Vec<Prediction>> {
    let (rows, classes) = logits.dims2()?;
    if rows != targets.len() || logits.dtype() != DType::F32 {
        bail!(
            "predictions: found {:?} {:?} and {} targets, expected f32 logits of as many rows",
            logits.dtype(),
            logits.dims(),
            targets.len()
        );
    }
    if targets.contains(&super::IGNORED) {
        bail!("predictions: found a target that is left out, expected a class");
    }
    check_targets(targets, classes)?;
    match backend {
        Backend::Cpu(pool) => on_cpu(pool, logits, targets),
        Backend::Gpu(processor) => operators::predictions(&**processor, logits, targets),
    }
}

fn on_cpu(pool: &Pool, logits: &Tensor, targets: &[i64]) -> Result<Vec<Prediction>> {
    let (rows, classes) = logits.dims2()?;
    let (storage, layout) = logits.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("predictions: found logits elsewhere") };
    let logits = elements(pool, storage, layout)?;
    let one = |row: usize| of_row(&logits[row * classes..][..classes], targets[row] as usize);
    Ok(pool.map(rows, one))
}

fn of_row(logits: &[f32], target: usize) -> Prediction {
    let (mut most, mut class) = (f32::NEG_INFINITY, 0);
    for (number, &logit) in logits.iter().enumerate() {
        if logit > most {
            (most, class) = (logit, number as u32);
        }
    }
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    Prediction { loss: sum.ln() - f64::from(logits[target] - most), class }
}
