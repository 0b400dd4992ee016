//! The files of a folder that hold weights, and opening them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use annulus_files::Outside;
use annulus_files::hugging_face::{WEIGHTS, WEIGHTS_INDEX, is_plain};
use annulus_tensors::{Room, TensorFile, TensorsError, read_index};

use super::{Flaw, WeightsError};

/// The files that hold the weights.
#[derive(Debug)]
pub(super) struct Listing {
    /// Names of the files, sorted.
    pub(super) files: Vec<String>,
    /// The file of every tensor, where there is an index.
    pub(super) index: Option<BTreeMap<String, String>>,
}

/// The files of `folder` that hold weights: `model.safetensors`, or else what the index names, within `room`.
pub(super) fn list(folder: &Path, room: Room) -> Result<Listing, WeightsError> {
    fs::read_dir(folder).map_err(|source| unread(folder, source))?;
    if exists(&folder.join(WEIGHTS))? {
        Ok(Listing { files: vec![WEIGHTS.to_owned()], index: None })
    } else if exists(&folder.join(WEIGHTS_INDEX))? {
        list_shards(folder, room)
    } else {
        Err(WeightsError::Absent { folder: folder.to_owned() })
    }
}

/// The single file `name`, which must exist.
pub(super) fn list_one(folder: &Path, name: &str) -> Result<Listing, WeightsError> {
    if exists(&folder.join(name))? {
        return Ok(Listing { files: vec![name.to_owned()], index: None });
    }
    Err(WeightsError::NoAdapter { folder: folder.to_owned() })
}

fn list_shards(folder: &Path, mut room: Room) -> Result<Listing, WeightsError> {
    let path = folder.join(WEIGHTS_INDEX);
    let index = read_index(&path, &within(folder, WEIGHTS_INDEX)?, &mut room)?;
    if index.is_empty() {
        return Err(TensorsError::malformed(&path, &"its `weight_map` is empty").into());
    }
    let shards: BTreeMap<_, _> = index.iter().map(|(tensor, file)| (file, tensor)).collect();
    let mut flaws = Vec::new();
    for (&file, &tensor) in &shards {
        let (tensor, file) = (tensor.clone(), file.clone());
        if !is_plain(&file) {
            flaws.push(Flaw::ShardName { tensor, file });
        } else if !exists(&folder.join(&file))? {
            flaws.push(Flaw::NoShard { tensor, file });
        }
    }
    if !flaws.is_empty() {
        return Err(WeightsError::Unfit { folder: folder.to_owned(), flaws });
    }
    let files = shards.into_keys().cloned().collect();
    Ok(Listing { files, index: Some(index) })
}

/// Opens a safetensors file of `folder`, whose header must fit into `room`. A link must not lead out of the folder.
pub(super) fn open(folder: &Path, name: &str, room: &mut Room) -> Result<TensorFile, WeightsError> {
    Ok(TensorFile::open(&folder.join(name), &within(folder, name)?, room)?)
}

/// The path of a file of `folder` with links followed.
pub(super) fn within(folder: &Path, name: &str) -> Result<PathBuf, WeightsError> {
    let file = folder.join(name);
    annulus_files::within(folder, name).map_err(|error| match error.downcast::<Outside>() {
        Ok(Outside { target }) => WeightsError::Outside { file, target },
        Err(source) => WeightsError::Read { file, source },
    })
}

/// Whether the path exists, even as a link that leads nowhere.
fn exists(path: &Path) -> Result<bool, WeightsError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(unread(path, source)),
    }
}

fn unread(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Read { file: PathBuf::from(path), source }
}
