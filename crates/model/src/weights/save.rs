//! From weights to files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use candle_core::Tensor;
use safetensors::View;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use super::folder::{INDEX, SINGLE};
use super::{Weights, WeightsError};

/// A tensor of this shape as slices of it, flat, in order: at least one.
#[derive(Clone, Debug)]
pub struct Sliced<'a> {
    /// The shape.
    pub shape: &'a [usize],
    /// All its elements.
    pub slices: Vec<Tensor>,
}

impl<'a> Sliced<'a> {
    /// A whole tensor.
    pub fn whole(tensor: &'a Tensor) -> Sliced<'a> {
        Sliced { shape: tensor.dims(), slices: vec![tensor.clone()] }
    }
    fn bytes(&self) -> usize {
        self.slices.iter().map(View::data_len).sum()
    }
}

/// The tensors of one file, in the order of their names.
type Shard<'a> = Vec<(String, Sliced<'a>)>;

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
    let shards = shards_of(weights, shard_bytes);
    let mut files = Vec::new();
    let mut index = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE.to_owned(),
            all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
        };
        save_file(&folder.join(&name), shard)?;
        index.extend(shard.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
        files.push(name);
    }
    if shards.len() > 1 {
        let total: usize = weights.values().map(View::data_len).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": index });
        write(&folder.join(INDEX), |file| Ok(serde_json::to_writer_pretty(file, &index)?))?;
        files.push(INDEX.to_owned());
    }
    Ok(files)
}

/// Writes these tensors, in this order, into one safetensors file, synced to disk.
///
/// # Errors
/// A file that cannot be written.
pub fn save_file(path: &Path, tensors: &[(String, Sliced<'_>)]) -> Result<(), WeightsError> {
    write(path, |file| write_shard(file, tensors))
}

/// Fills shards in the order of names; one is full when the next tensor would exceed `shard_bytes`.
fn shards_of(weights: &Weights, shard_bytes: u64) -> Vec<Shard<'_>> {
    let mut shards = vec![Shard::new()];
    let mut held = 0;
    for (name, tensor) in weights {
        let bytes = tensor.data_len() as u64;
        if held > 0 && held + bytes > shard_bytes {
            shards.push(Shard::new());
            held = 0;
        }
        held += bytes;
        let shard = shards.last_mut().expect("there is one from the start");
        shard.push((name.clone(), Sliced::whole(tensor)));
    }
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
fn write_shard(file: &mut impl Write, tensors: &[(String, Sliced<'_>)]) -> io::Result<()> {
    let mut entries = Vec::new();
    let mut end = 0;
    for (name, tensor) in tensors {
        let begin = end;
        end += tensor.bytes();
        let (dtype, shape) = (View::dtype(&tensor.slices[0]), tensor.shape.to_vec());
        entries.push((name.clone(), TensorInfo { dtype, shape, data_offsets: (begin, end) }));
    }
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), entries).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    // Data starts at a multiple of 8, as readers that map the file wish.
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for slice in tensors.iter().flat_map(|(_, tensor)| &tensor.slices) {
        file.write_all(&slice.data())?;
    }
    Ok(())
}
