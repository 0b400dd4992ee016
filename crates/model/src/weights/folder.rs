//! Which files of a folder hold the weights, and opening them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;

use super::header::{Room, Short, parse_index};
use super::{Flaw, WeightsError};

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The files that hold the weights.
#[derive(Debug)]
pub(super) struct Listing {
    /// Their names, sorted.
    pub(super) files: Vec<String>,
    /// The file of every tensor, where there is an index.
    pub(super) index: Option<BTreeMap<String, String>>,
}

/// The files in `folder` that hold the weights: `model.safetensors`, or else what the index names, for
/// which there is `room`.
pub(super) fn list(folder: &Path, room: Room) -> Result<Listing, WeightsError> {
    fs::read_dir(folder).map_err(|source| unread(folder, source))?;
    if exists(&folder.join(SINGLE))? {
        Ok(Listing { files: vec![SINGLE.to_owned()], index: None })
    } else if exists(&folder.join(INDEX))? {
        list_shards(folder, room)
    } else {
        Err(WeightsError::Absent { folder: folder.to_owned() })
    }
}

/// The one file `name`, which must be there.
pub(super) fn list_one(folder: &Path, name: &str) -> Result<Listing, WeightsError> {
    if exists(&folder.join(name))? {
        return Ok(Listing { files: vec![name.to_owned()], index: None });
    }
    Err(WeightsError::NoAdapter { folder: folder.to_owned() })
}

fn list_shards(folder: &Path, mut room: Room) -> Result<Listing, WeightsError> {
    let path = folder.join(INDEX);
    let bytes = map(folder, INDEX)?;
    let index = parse_index(&path, &bytes, &mut room)?.into_iter();
    let owned = index.map(|(tensor, Short(file))| (tensor.into_owned(), file.into_owned()));
    let index: BTreeMap<String, String> = owned.collect();
    if index.is_empty() {
        return Err(WeightsError::malformed(&path, &"its `weight_map` is empty"));
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

/// Maps a file of `folder` into memory. It must be a regular file there.
pub(super) fn map(folder: &Path, name: &str) -> Result<Mmap, WeightsError> {
    let path = folder.join(name);
    let unread = |source| unread(&path, source);
    let target = path.canonicalize().map_err(unread)?;
    if !stays(folder, &target).map_err(unread)? {
        return Err(WeightsError::Outside { file: path, target });
    }
    // Asked before it is opened: opening a pipe would wait for somebody to write to it.
    if !fs::metadata(&target).map_err(unread)?.is_file() {
        return Err(WeightsError::Irregular { file: path });
    }
    let file = File::open(&target).map_err(unread)?;
    // SAFETY: the map is only read, and what is read is copied before the map is dropped. Somebody
    // who cuts the file short meanwhile ends the process with SIGBUS, as with every reader of
    // mapped files; no invalid value can arise, as bytes are all that is taken from it.
    unsafe { Mmap::map(&file) }.map_err(unread)
}

/// Whether `target` is in `folder`, or in the `blobs` that a snapshot of Hugging Face's cache links
/// to.
fn stays(folder: &Path, target: &Path) -> std::io::Result<bool> {
    let folder = folder.canonicalize()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
    Ok(target.starts_with(&folder) || blobs.is_some_and(|blobs| target.starts_with(blobs)))
}

/// Whether something of this name is there, if only a link that leads nowhere.
fn exists(path: &Path) -> Result<bool, WeightsError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(unread(path, source)),
    }
}

/// Whether `name` is a file name and nothing more, on any system.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let normal = matches!(components.next(), Some(Component::Normal(only)) if only == name);
    normal && components.next().is_none() && !name.contains(['/', '\\', ':', '\0'])
}

fn unread(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Read { file: PathBuf::from(path), source }
}
