//! From weights to files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use candle_core::{DType, Tensor};
use safetensors::View;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use super::folder::{INDEX, SINGLE};
use super::{Weights, WeightsError};

/// What a file says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: DType,
}

impl Described {
    /// A tensor under a name.
    pub fn of(name: impl Into<String>, tensor: &Tensor) -> Described {
        Described { name: name.into(), shape: tensor.dims().to_vec(), dtype: tensor.dtype() }
    }
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size_in_bytes()) as u64
    }
}

/// Hands over a tensor by its name, when it is written: all its elements as slices of it, flat, in order.
pub type Read<'a> = &'a mut dyn FnMut(&str) -> io::Result<Vec<Tensor>>;

/// Writes `model.safetensors`, or shards and an index if the weights take more than `shard_bytes`,
/// into `folder`, with the metadata `{"format": "pt"}` that transformers asks for. A tensor larger
/// than `shard_bytes` gets a shard of its own.
///
/// Files are synced to disk; equal weights make equal bytes. Returns the names of the files, the
/// index last.
///
/// # Errors
/// A file that cannot be written.
pub fn save(
    folder: &Path,
    weights: &Weights,
    shard_bytes: u64,
) -> Result<Vec<String>, WeightsError> {
    let all: Vec<_> = weights.iter().map(|(name, weight)| Described::of(name, weight)).collect();
    save_by(folder, &all, shard_bytes, &mut whole(weights))
}

/// The same of weights, in the order of their names, that are read one at a time.
///
/// # Errors
/// As [`save`], and those of `read`.
pub fn save_by(
    folder: &Path,
    weights: &[Described],
    shard_bytes: u64,
    read: Read<'_>,
) -> Result<Vec<String>, WeightsError> {
    let shards = shards_of(weights, shard_bytes);
    let mut files = Vec::new();
    let mut index = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE.to_owned(),
            all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
        };
        save_file(&folder.join(&name), shard, read)?;
        index.extend(shard.iter().map(|one| (one.name.clone(), name.clone())));
        files.push(name);
    }
    if shards.len() > 1 {
        let total: u64 = weights.iter().map(Described::bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": index });
        write(&folder.join(INDEX), |file| Ok(serde_json::to_writer_pretty(file, &index)?))?;
        files.push(INDEX.to_owned());
    }
    Ok(files)
}

/// Hands over whole weights.
pub(super) fn whole(weights: &Weights) -> impl FnMut(&str) -> io::Result<Vec<Tensor>> {
    |name| {
        let weight = weights.get(name).cloned();
        weight.map(|weight| vec![weight]).ok_or_else(|| io::Error::other(format!("no `{name}`")))
    }
}

/// Writes these tensors, in this order, into one safetensors file, synced to disk; one at a time is read.
///
/// # Errors
/// A file that cannot be written, and those of `read`.
pub fn save_file(path: &Path, tensors: &[Described], read: Read<'_>) -> Result<(), WeightsError> {
    write(path, |file| write_shard(file, tensors, read))
}

/// Fills shards in the order of names; one is full when the next tensor would exceed `shard_bytes`.
fn shards_of(weights: &[Described], shard_bytes: u64) -> Vec<&[Described]> {
    let (mut shards, mut begins, mut held) = (Vec::new(), 0, 0);
    for (at, one) in weights.iter().enumerate() {
        if held > 0 && held + one.bytes() > shard_bytes {
            shards.push(&weights[begins..at]);
            (begins, held) = (at, 0);
        }
        held += one.bytes();
    }
    shards.push(&weights[begins..]);
    shards
}

/// Creates `path`, fills it, and returns when it is on the disk.
fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), WeightsError> {
    let create = || {
        let mut file = BufWriter::new(File::create(path)?);
        fill(&mut file)?;
        file.into_inner()?.sync_all()
    };
    create().map_err(|source| WeightsError::Write { file: path.to_owned(), source })
}

/// Header and data, one tensor at a time. The crate's own writer leaves files that nobody but their
/// owner may read, and unsynced.
fn write_shard(file: &mut impl Write, tensors: &[Described], read: Read<'_>) -> io::Result<()> {
    let mut entries = Vec::new();
    let mut end = 0;
    for tensor in tensors {
        let begin = end;
        end += tensor.bytes() as usize;
        let dtype = safetensors::Dtype::from(tensor.dtype);
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        entries.push((name, TensorInfo { dtype, shape, data_offsets: (begin, end) }));
    }
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), entries).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    // Data starts at a multiple of 8, as readers that map the file wish.
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for tensor in tensors {
        let (slices, wanted) = (read(&tensor.name)?, tensor.bytes());
        let found: usize = slices.iter().map(View::data_len).sum();
        if found as u64 != wanted {
            // All tensors behind it would be elsewhere than the header says.
            let name = &tensor.name;
            return Err(io::Error::other(format!("`{name}` has {found} bytes, wanted {wanted}")));
        }
        for slice in slices {
            file.write_all(&slice.data())?;
        }
    }
    Ok(())
}
