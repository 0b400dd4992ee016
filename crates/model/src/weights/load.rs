//! From files to weights.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Result, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::folder::{Listing, list, map};
use super::header::{self, Room};
use super::{Flaw, Weights, WeightsError};
use crate::Specification;

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(super) const LAST_PROJECTION: &str = "lm_head.weight";
/// Older checkpoints hold the rotary frequencies, which follow from config.json and are no
/// parameters.
const ROTARY_BUFFER: &str = ".self_attn.rotary_emb.inv_freq";

/// What an index is read for where no model is known: more than any has.
const MOST_PARAMETERS: usize = 1 << 14;

/// A tensor in a file.
struct Found<'a> {
    file: &'a str,
    view: TensorView<'a>,
}

/// Reads exactly the tensors of `specification` from `model.safetensors`, or else the shards of
/// `model.safetensors.index.json`, widened or narrowed to `dtype`.
///
/// Missing, surplus and misshapen tensors are errors, all of them at once, and so is a shard that
/// is no plain file name or a link that leaves the folder (Hugging Face's cache excepted). A tied
/// model's file may repeat the embedding as `lm_head.weight`.
pub fn load(
    folder: &Path,
    specification: &[Specification],
    dtype: DType,
) -> std::result::Result<Weights, WeightsError> {
    load_typed(folder, specification, &|_| dtype)
}

/// [`load`] where `dtype` says the type of each.
///
/// # Errors
/// As there.
pub fn load_typed(
    folder: &Path,
    specification: &[Specification],
    dtype: &dyn Fn(&Specification) -> DType,
) -> std::result::Result<Weights, WeightsError> {
    let listing = list(folder, Room::of(specification.len()))?;
    load_listed(folder, &listing, specification, dtype)
}

/// The same of what `listing` names.
pub(super) fn load_listed(
    folder: &Path,
    listing: &Listing,
    specification: &[Specification],
    dtype: &dyn Fn(&Specification) -> DType,
) -> std::result::Result<Weights, WeightsError> {
    let mut room = Room::of(specification.len());
    let mut maps = Vec::new();
    for file in &listing.files {
        maps.push((file.as_str(), map(folder, file)?));
    }
    let mut files = Vec::new();
    for (file, bytes) in &maps {
        files.push((*file, header::parse(&folder.join(file), bytes, &mut room)?));
    }
    let mut flaws = Vec::new();
    let found = collect(listing, &files, &mut flaws);
    flaws.extend(specification.iter().filter_map(|wanted| unfit(wanted, &found, listing)));
    flaws.extend(surplus(specification, &found));
    if !flaws.is_empty() {
        return Err(WeightsError::Unfit { folder: folder.to_owned(), flaws });
    }
    let mut weights = Weights::new();
    for wanted in specification {
        let name = &wanted.name;
        let Found { file, view } = &found[name.as_str()];
        let weight =
            widen_or_narrow(view, dtype(wanted)).map_err(|source| WeightsError::Tensor {
                file: folder.join(file),
                tensor: name.clone(),
                source: Box::new(source),
            })?;
        weights.insert(name.clone(), weight);
    }
    Ok(weights)
}

/// A hash (BLAKE3, hexadecimal) of the names and contents of the files that [`load`] would read.
pub fn fingerprint(folder: &Path) -> std::result::Result<String, WeightsError> {
    let mut whole = blake3::Hasher::new();
    for file in list(folder, Room::of(MOST_PARAMETERS))?.files {
        let content = blake3::hash(&map(folder, &file)?);
        whole.update(blake3::hash(file.as_bytes()).as_bytes());
        whole.update(content.as_bytes());
    }
    Ok(whole.finalize().to_hex().to_string())
}

/// Every tensor of every file by name, and where index and shards disagree.
fn collect<'a>(
    listing: &'a Listing,
    files: &'a [(&'a str, BTreeMap<Cow<'a, str>, TensorView<'a>>)],
    flaws: &mut Vec<Flaw>,
) -> BTreeMap<&'a str, Found<'a>> {
    let mut found = BTreeMap::new();
    let mut stray = BTreeSet::new();
    for (file, tensors) in files {
        for (name, view) in tensors {
            let name: &str = name;
            let listed = listing.index.as_ref().map(|index| index.get(name));
            if listed.is_none_or(|shard| shard.is_some_and(|shard| shard == file)) {
                found.insert(name, Found { file, view: view.clone() });
            } else {
                stray.insert((name, *file));
            }
        }
    }
    for (name, file) in stray {
        flaws.push(Flaw::NotInIndex { tensor: name.to_owned(), file: file.to_owned() });
    }
    for (name, file) in listing.index.iter().flatten() {
        if !found.contains_key(name.as_str()) {
            flaws.push(Flaw::NotInShard { tensor: name.clone(), file: file.clone() });
        }
    }
    found
}

/// What is wrong with the tensor that is wanted.
fn unfit(
    wanted: &Specification,
    found: &BTreeMap<&str, Found<'_>>,
    listing: &Listing,
) -> Option<Flaw> {
    let Specification { name, shape, .. } = wanted;
    let tensor = name.clone();
    let Some(Found { file, view }) = found.get(name.as_str()) else {
        // One that the index has is reported already.
        let listed = listing.index.as_ref().is_some_and(|index| index.contains_key(name));
        return (!listed).then(|| Flaw::Missing { tensor, wanted: shape.clone() });
    };
    let file = (*file).to_owned();
    if view.shape() != shape {
        return Some(Flaw::Shape {
            tensor,
            file,
            found: view.shape().to_vec(),
            wanted: shape.clone(),
        });
    }
    let floating = matches!(view.dtype(), Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F64);
    (!floating).then(|| Flaw::Dtype { tensor, file, found: view.dtype() })
}

/// Tensors that are not wanted, but for those that add nothing to the wanted ones.
fn surplus(specification: &[Specification], found: &BTreeMap<&str, Found<'_>>) -> Vec<Flaw> {
    let wanted: BTreeSet<_> = specification.iter().map(|wanted| wanted.name.as_str()).collect();
    let unwanted = found.iter().filter(|(name, _)| !wanted.contains(*name));
    let flaw = |(&name, Found { file, view }): (&&str, &Found<'_>)| {
        let (tensor, file) = (name.to_owned(), (*file).to_owned());
        // What wraps a model puts the same before both names.
        let prefix = name.strip_suffix(LAST_PROJECTION);
        let embedding =
            prefix.and_then(|prefix| found.get(format!("{prefix}{EMBEDDING}").as_str()));
        match embedding {
            _ if name.ends_with(ROTARY_BUFFER) => None,
            Some(embedding) => (embedding.view != *view).then_some(Flaw::Untied { tensor, file }),
            _ => Some(Flaw::Surplus { tensor, file, found: view.shape().to_vec() }),
        }
    };
    unwanted.filter_map(flaw).collect()
}

fn widen_or_narrow(view: &TensorView<'_>, dtype: DType) -> Result<Tensor> {
    view.load(&Device::Cpu)?.to_dtype(dtype)
}
