//! Writes weights to files.

use std::path::Path;

use candle_core::Tensor;

use super::{Described, Layout, Weights, WeightsError};

/// Writes `model.safetensors`, or shards and an index, into `folder`, as [`Layout::of_weights`] has it.
///
/// Files are synced to disk. Returns their names, the index last.
///
/// # Errors
/// A file that cannot be written.
pub fn save(
    folder: &Path,
    weights: &Weights,
    shard_bytes: u64,
) -> Result<Vec<String>, WeightsError> {
    let all: Vec<_> = weights.iter().map(|(name, weight)| Described::of(name, weight)).collect();
    let layout = Layout::of_weights(&all, shard_bytes)?;
    fill(folder, &layout, weights.iter().map(|(name, weight)| (name.as_str(), weight)))
}

/// Writes these tensors, in this order, to one safetensors file of a folder, synced to disk.
///
/// # Errors
/// A file that cannot be written.
pub fn save_file(
    folder: &Path,
    name: &str,
    tensors: &[(&str, &Tensor)],
) -> Result<(), WeightsError> {
    let described = tensors.iter().map(|(name, tensor)| (*name, Described::of(*name, tensor)));
    let layout = Layout::of_file(name, described)?;
    fill(folder, &layout, tensors.iter().copied()).map(drop)
}

/// Creates and fills the files of a layout with tensors that are all in memory.
fn fill<'a>(
    folder: &Path,
    layout: &Layout,
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Vec<String>, WeightsError> {
    let names = layout.create(folder)?;
    let mut files = layout.open(folder)?;
    for (name, tensor) in tensors {
        files.write(name, tensor, &[(0, tensor.elem_count())])?;
    }
    files.end()?;
    Ok(names)
}
