//! Adapters in PEFT's format: the trained parameters, under their own names after a prefix, in one file.

use std::path::Path;

use annulus_files::hugging_face::ADAPTER_WEIGHTS;
use candle_core::DType;

use super::folder::list_one;
use super::load::{EMBEDDING, LAST_PROJECTION, listed};
use super::{Described, Layout, Stored, WeightsError};
use crate::Specification;

/// The prefix that PEFT puts before every name.
const PREFIX: &str = "base_model.model.";

/// Finds exactly the trained parameters of `specification` in `adapter_model.safetensors`, to be read widened or narrowed to `dtype`.
///
/// # Errors
/// As of [`super::stored`].
pub fn stored_adapter(
    folder: &Path,
    specification: &[Specification],
    dtype: DType,
) -> Result<Stored, WeightsError> {
    let trained = specification.iter().filter(|parameter| parameter.trained);
    let prefixed = trained.map(|parameter| {
        let name = format!("{PREFIX}{}", parameter.name);
        Specification { name, ..parameter.clone() }
    });
    let prefixed: Vec<_> = prefixed.collect();
    let listing = list_one(folder, ADAPTER_WEIGHTS)?;
    let Stored { files, tensors } = listed(folder, &listing, &prefixed, &|_| dtype)?;
    let tensors = tensors.into_iter();
    let tensors = tensors.map(|(name, tensor)| (name[PREFIX.len()..].to_owned(), tensor));
    Ok(Stored { files, tensors: tensors.collect() })
}

/// The layout of a model's adapter file, with everything that is `trained`. Where the output projection is `tied` to the embedding, PEFT
/// looks for it too.
///
/// # Errors
/// As of [`Layout::of_file`].
pub fn adapter_layout(trained: &[Described], tied: bool) -> Result<Layout, WeightsError> {
    let head = trained.iter().find(|one| tied && one.name == EMBEDDING);
    let head = head.map(|embedding| (embedding, LAST_PROJECTION));
    let all = head.into_iter().chain(trained.iter().map(|one| (one, one.name.as_str())));
    let named = all.map(|(one, name)| {
        (one.name.as_str(), Described { name: format!("{PREFIX}{name}"), ..one.clone() })
    });
    Layout::of_file(ADAPTER_WEIGHTS, named)
}
