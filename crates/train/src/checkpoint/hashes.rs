//! Size and hash that a checkpoint's files must have, by name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{HASHES, OPTIMIZER, STATE};

/// The largest `hashes.json` that is read, in bytes: a name and a hash for each of some thousand files.
const LARGEST: u64 = 1 << 22;

/// The content of `hashes.json`: size and hash of every other file in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hashes(BTreeMap<String, Stamp>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    blake3: String,
}

/// A file that is missing or differs from `hashes.json`.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) file: String,
    pub(super) what: String,
}

impl Hashes {
    /// Sizes and hashes of all files in `folder`; they are synced to disk first.
    pub(super) fn of(folder: &Path) -> io::Result<Hashes> {
        let mut stamps = BTreeMap::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            File::open(entry.path())?.sync_all()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            stamps.insert(name, stamp(&entry.path())?);
        }
        Ok(Hashes(stamps))
    }

    /// Writes `hashes.json` in `folder`, synced to disk.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(HASHES);
        std::fs::write(&path, serde_json::to_vec_pretty(self)?)?;
        File::open(&path)?.sync_all()
    }

    /// Reads `hashes.json` in `folder` and checks every file against it.
    pub(super) fn verify(folder: &Path) -> Result<(), Damage> {
        let damage = |file: &str, what: String| Damage { file: file.to_owned(), what };
        let text =
            annulus_files::read(&folder.join(HASHES), LARGEST).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::NotFound => damage(HASHES, "missing".to_owned()),
                    _ => damage(HASHES, error.to_string()),
                }
            })?;
        let Hashes(stamps) = serde_json::from_slice(&text)
            .map_err(|error| damage(HASHES, format!("not what was written ({error})")))?;
        for needed in [STATE, OPTIMIZER] {
            if !stamps.contains_key(needed) {
                return Err(damage(HASHES, format!("it does not have `{needed}`")));
            }
        }
        // Every other file that would be read must have been written with the checkpoint, too.
        let entries =
            std::fs::read_dir(folder).map_err(|error| damage(HASHES, error.to_string()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != HASHES && is_read(&name) && !stamps.contains_key(&name) {
                return Err(damage(HASHES, format!("it does not have `{name}`")));
            }
        }
        stamps.iter().try_for_each(|(name, wanted)| {
            if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
                return Err(damage(HASHES, format!("`{name}` is no plain file name")));
            }
            held(&folder.join(name), wanted).map_err(|what| damage(name, what))
        })
    }
}

/// Checks a file against its stamp; the error says how it differs.
fn held(path: &Path, wanted: &Stamp) -> Result<(), String> {
    let found = stamp(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("missing, but `{HASHES}` has it"),
        _ => error.to_string(),
    })?;
    if found.size != wanted.size {
        return Err(format!("{} bytes, but `{HASHES}` has {}", found.size, wanted.size));
    }
    if found.blake3 != wanted.blake3 {
        return Err(format!("its hash is not the one that `{HASHES}` has"));
    }
    Ok(())
}

/// Whether a file of this name is read when a run resumes from a checkpoint, or when it is used as a model.
fn is_read(name: &str) -> bool {
    let kind = Path::new(name).extension();
    kind.is_some_and(|kind| kind == "safetensors" || kind == "json")
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(annulus_files::open(path)?)?;
    Ok(Stamp { size: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
}
