//! Adapters as PEFT has them: what is trained, under its own names behind a prefix, in one file.

use std::path::Path;

use candle_core::{DType, Tensor};

use super::folder::list_one;
use super::load::{EMBEDDING, LAST_PROJECTION, load_listed};
use super::save::whole;
use super::{Described, Weights, WeightsError, save_file};
use crate::Specification;

/// The file of an adapter's weights.
const FILE: &str = "adapter_model.safetensors";
/// What PEFT's wrapping of a model puts before every name.
const PREFIX: &str = "base_model.model.";

/// Reads exactly the trained ones of `specification` from `adapter_model.safetensors`, widened or narrowed to `dtype`.
///
/// # Errors
/// As of [`super::load`].
pub fn load_adapter(
    folder: &Path,
    specification: &[Specification],
    dtype: DType,
) -> Result<Weights, WeightsError> {
    let trained = specification.iter().filter(|parameter| parameter.trained);
    let prefixed = trained.map(|parameter| {
        let name = format!("{PREFIX}{}", parameter.name);
        Specification { name, ..parameter.clone() }
    });
    let prefixed: Vec<_> = prefixed.collect();
    let listing = list_one(folder, FILE)?;
    let weights = load_listed(folder, &listing, &prefixed, &|_| dtype)?.into_iter();
    Ok(weights.map(|(name, weight)| (name[PREFIX.len()..].to_owned(), weight)).collect())
}

/// Writes `trained`, the trained ones of a model's weights, into `folder`, synced to disk. Where the last projection is `tied` to the
/// embedding, PEFT looks for it too.
///
/// # Errors
/// When it cannot be written.
pub fn save_adapter(folder: &Path, trained: &Weights, tied: bool) -> Result<(), WeightsError> {
    let head = trained.get(EMBEDDING).filter(|_| tied);
    let head = head.map(|embedding| (LAST_PROJECTION, embedding));
    let trained = trained.iter().map(|(name, weight)| (name.as_str(), weight));
    let named = |(name, weight): (&str, &Tensor)| (format!("{PREFIX}{name}"), weight.clone());
    let all: Vec<(String, Tensor)> = head.into_iter().chain(trained).map(named).collect();
    let tensors: Vec<_> = all.iter().map(|(name, weight)| Described::of(name, weight)).collect();
    save_file(&folder.join(FILE), &tensors, &mut whole(&all.into_iter().collect()))
}
