//! Weights by Hugging Face name: in memory, from safetensors, to safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Tensor};

use crate::Specification;

/// Weights by name. Ordered, so that every rank goes through them alike.
pub type Weights = BTreeMap<String, Tensor>;

/// What is wrong with a folder of weights: names the file, the tensor, what was found and what was wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Placeholder until the module is written.
    #[error("unread")]
    Unread,
}

/// Reads exactly the tensors of `specification` from `model.safetensors`, or the shards of `model.safetensors.index.json`,
/// widened or narrowed to `dtype`. Missing, surplus, misshapen tensors are errors, and so is a shard that is no plain file name.
pub fn load(
    _folder: &Path,
    _specification: &[Specification],
    _dtype: DType,
) -> Result<Weights, WeightsError> {
    todo!()
}

/// Writes `model.safetensors` (or shards and an index above `shard_bytes`) into `folder`, with `{"format": "pt"}`; synced to disk.
/// Returns the names of the files.
pub fn save(
    _folder: &Path,
    _weights: &Weights,
    _shard_bytes: u64,
) -> Result<Vec<String>, WeightsError> {
    todo!()
}
