//! Reads weights from files: a folder is checked against a model, as a whole, before anything is read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use annulus_tensors::{Entry, Room, TensorFile, TensorsError};
use candle_core::DType;
use safetensors::Dtype;

use super::folder::{Listing, list, open, within};
use super::stored::StoredTensor;
use super::{Flaw, Stored, Weights, WeightsError};
use crate::Specification;

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(super) const LAST_PROJECTION: &str = "lm_head.weight";
/// The suffix of rotary frequencies in older checkpoints, which follow from config.json and are not parameters.
const ROTARY_BUFFER: &str = ".self_attn.rotary_emb.inv_freq";

/// The most parameters of an index that is read without knowing the model.
const MOST_PARAMETERS: usize = 1 << 14;

/// How a hash of tensors begins; one of files has nothing before its digits.
pub const OF_TENSORS: &str = "tensors-";
/// Bytes of a tensor that are hashed at a time.
const BLOCK: usize = 1 << 16;

/// A tensor found in a file.
#[derive(Clone, Copy)]
struct Found<'a> {
    /// The file's index, and its name.
    number: usize,
    name: &'a str,
    file: &'a TensorFile,
    entry: &'a Entry,
}

/// Reads exactly the tensors of `specification` from `model.safetensors`, or else the shards of
/// `model.safetensors.index.json`, widened or narrowed to `dtype`.
///
/// Missing, surplus and misshapen tensors are errors, all of them at once, and so is a shard that
/// is no plain file name or a link that leaves the folder (Hugging Face's cache excepted). A tied
/// model's file may repeat the embedding as `lm_head.weight`.
///
/// # Errors
/// Everything that is wrong with the files and their tensors.
pub fn load(
    folder: &Path,
    specification: &[Specification],
    dtype: DType,
) -> Result<Weights, WeightsError> {
    stored(folder, specification, &|_| dtype)?.all()
}

/// Finds exactly the tensors of `specification` in `folder` without reading them; `dtype` gives the type of each.
///
/// # Errors
/// Everything that is wrong with the files.
pub fn stored(
    folder: &Path,
    specification: &[Specification],
    dtype: &dyn Fn(&Specification) -> DType,
) -> Result<Stored, WeightsError> {
    let listing = list(folder, room(specification.len()))?;
    listed(folder, &listing, specification, dtype)
}

/// Finds exactly the tensors of `specification` in the files that `listing` names, without reading them.
pub(super) fn listed(
    folder: &Path,
    listing: &Listing,
    specification: &[Specification],
    dtype: &dyn Fn(&Specification) -> DType,
) -> Result<Stored, WeightsError> {
    let mut room = room(specification.len());
    let mut files = Vec::new();
    for file in &listing.files {
        files.push((file.as_str(), open(folder, file, &mut room)?));
    }
    let mut flaws = Vec::new();
    let found = collect(listing, &files, &mut flaws);
    flaws.extend(specification.iter().filter_map(|wanted| unfit(wanted, &found, listing)));
    flaws.extend(surplus(specification, &found)?);
    if !flaws.is_empty() {
        return Err(WeightsError::Unfit { folder: folder.to_owned(), flaws });
    }
    let of_tensor = |wanted: &Specification| {
        let Found { number: file, entry, .. } = found[wanted.name.as_str()];
        let (called, entry) = (wanted.name.clone(), entry.clone());
        (wanted.name.clone(), StoredTensor { file, called, entry, dtype: dtype(wanted) })
    };
    let tensors = specification.iter().map(of_tensor).collect();
    drop(found);
    Ok(Stored { files: files.into_iter().map(|(_, file)| file).collect(), tensors })
}

/// Room for the headers of a model with `parameters`, in files that may also hold older ones' frequencies and flaws.
fn room(parameters: usize) -> Room {
    Room::of(2 * parameters + 64)
}

/// A hash (BLAKE3, hexadecimal, after [`OF_TENSORS`]) of names, dtypes, shapes and bytes of the tensors that lie in `folder`, in whichever
/// files.
///
/// # Errors
/// A file that is missing or cannot be read.
pub fn fingerprint(folder: &Path) -> Result<String, WeightsError> {
    let mut room = room(MOST_PARAMETERS);
    let listing = list(folder, room)?;
    let mut hashes = BTreeMap::new();
    for name in &listing.files {
        let file = open(folder, name, &mut room)?;
        for (tensor, entry) in file.tensors() {
            if listing.index.as_ref().is_some_and(|index| index.get(tensor) != Some(name)) {
                continue;
            }
            let (dtype, shape, hash) = (entry.dtype, &entry.shape, hash(&file, entry)?);
            hashes.insert(tensor.clone(), format!(" {dtype} {shape:?} {hash}\n"));
        }
    }
    let mut whole = blake3::Hasher::new();
    for (tensor, said) in hashes {
        whole.update(blake3::hash(tensor.as_bytes()).as_bytes()).update(said.as_bytes());
    }
    Ok(format!("{OF_TENSORS}{}", whole.finalize().to_hex()))
}

/// A hash of a tensor's bytes.
fn hash(file: &TensorFile, entry: &Entry) -> Result<String, WeightsError> {
    let (mut hasher, mut block) = (blake3::Hasher::new(), vec![0; BLOCK]);
    for at in (0..entry.length()).step_by(BLOCK) {
        let bytes = &mut block[..BLOCK.min((entry.length() - at) as usize)];
        file.read_at(entry, at, bytes)?;
        hasher.update(bytes);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// A hash (BLAKE3, hexadecimal) of the names and contents of the files that [`load`] would read: what was kept of weights before
/// [`fingerprint`].
///
/// # Errors
/// A file that is missing or cannot be read.
pub fn fingerprint_of_files(folder: &Path) -> Result<String, WeightsError> {
    let mut whole = blake3::Hasher::new();
    for name in list(folder, room(MOST_PARAMETERS))?.files {
        let path = folder.join(&name);
        let unread = |source| TensorsError::read(&path, source);
        let file = annulus_files::open(&within(folder, &name)?).map_err(unread)?;
        let mut content = blake3::Hasher::new();
        content.update_reader(file).map_err(unread)?;
        whole.update(blake3::hash(name.as_bytes()).as_bytes());
        whole.update(content.finalize().as_bytes());
    }
    Ok(whole.finalize().to_hex().to_string())
}

/// Every tensor of every file by name, and the flaws where index and shards disagree.
fn collect<'a>(
    listing: &'a Listing,
    files: &'a [(&'a str, TensorFile)],
    flaws: &mut Vec<Flaw>,
) -> BTreeMap<&'a str, Found<'a>> {
    let mut found = BTreeMap::new();
    let mut stray = BTreeSet::new();
    for (number, (shard, file)) in files.iter().enumerate() {
        for (tensor, entry) in file.tensors() {
            let listed = listing.index.as_ref().map(|index| index.get(tensor));
            if listed.is_none_or(|listed| listed.is_some_and(|listed| listed == shard)) {
                found.insert(tensor.as_str(), Found { number, name: shard, file, entry });
            } else {
                stray.insert((tensor, *shard));
            }
        }
    }
    for (name, file) in stray {
        flaws.push(Flaw::NotInIndex { tensor: name.clone(), file: file.to_owned() });
    }
    for (name, file) in listing.index.iter().flatten() {
        if !found.contains_key(name.as_str()) {
            flaws.push(Flaw::NotInShard { tensor: name.clone(), file: file.clone() });
        }
    }
    found
}

/// The flaw of the tensor for `wanted`, if any.
fn unfit(
    wanted: &Specification,
    found: &BTreeMap<&str, Found<'_>>,
    listing: &Listing,
) -> Option<Flaw> {
    let Specification { name, shape, .. } = wanted;
    let tensor = name.clone();
    let Some(&Found { name: file, entry, .. }) = found.get(name.as_str()) else {
        // A missing tensor that the index lists is reported already.
        let listed = listing.index.as_ref().is_some_and(|index| index.contains_key(name));
        return (!listed).then(|| Flaw::Missing { tensor, wanted: shape.clone() });
    };
    let file = file.to_owned();
    if entry.shape != *shape {
        let (found, wanted) = (entry.shape.clone(), shape.clone());
        return Some(Flaw::Shape { tensor, file, found, wanted });
    }
    let floating = matches!(entry.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F64);
    (!floating).then_some(Flaw::Dtype { tensor, file, found: entry.dtype })
}

/// The flaws of tensors that are not wanted, except for those that repeat wanted ones.
fn surplus(
    specification: &[Specification],
    found: &BTreeMap<&str, Found<'_>>,
) -> Result<Vec<Flaw>, WeightsError> {
    let wanted: BTreeSet<_> = specification.iter().map(|wanted| wanted.name.as_str()).collect();
    let unwanted = found.iter().filter(|(name, _)| !wanted.contains(*name));
    let flaw = |(&name, &Found { name: shard, file, entry, .. }): (&&str, &Found<'_>)| {
        let (tensor, found_in) = (name.to_owned(), shard.to_owned());
        // A wrapper puts its prefix before both names.
        let prefix = name.strip_suffix(LAST_PROJECTION);
        let embedding =
            prefix.and_then(|prefix| found.get(format!("{prefix}{EMBEDDING}").as_str()));
        Ok(match embedding {
            _ if name.ends_with(ROTARY_BUFFER) => None,
            Some(embedding) => (!embedding.file.same(embedding.entry, file, entry)?)
                .then_some(Flaw::Untied { tensor, file: found_in }),
            _ => Some(Flaw::Surplus { tensor, file: found_in, found: entry.shape.clone() }),
        })
    };
    unwanted.filter_map(|tensor| flaw(tensor).transpose()).collect()
}
