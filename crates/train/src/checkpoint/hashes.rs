//! Size and hash that a checkpoint's files must have, by name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use annulus_experiment::ADAPTED;
use annulus_files::hugging_face::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, BESIDE_TOKENIZER, CONFIG, GENERATION_CONFIG, TEMPLATES,
    TOKENIZER, WEIGHTS, WEIGHTS_INDEX, is_template,
};
use serde::{Deserialize, Serialize};

use super::templates::templates;
use super::{HASHES, OPTIMIZER, STATE};

/// The largest `hashes.json` that is read, in bytes: a name and a hash for each of some thousand files.
const LARGEST: u64 = 1 << 22;

/// Files of a model or of adapters that are read wherever they lie, beside those of [`BESIDE_TOKENIZER`].
const READ: [&str; 8] = [
    WEIGHTS,
    WEIGHTS_INDEX,
    ADAPTER_WEIGHTS,
    ADAPTER_CONFIG,
    CONFIG,
    ADAPTED,
    GENERATION_CONFIG,
    TOKENIZER,
];

/// The content of `hashes.json`: size and hash of every other file in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileHashes(BTreeMap<String, Stamp>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    blake3: String,
}

/// Why a checkpoint is not used, with the file that is to blame.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The file is missing or differs from `hashes.json`.
    Damaged { file: String, what: String },
    /// The system could not read the file, which says nothing about what is in it.
    Unread { file: String, error: io::Error },
}

impl Refusal {
    pub(super) fn damaged(file: &str, what: impl Into<String>) -> Refusal {
        Refusal::Damaged { file: file.to_owned(), what: what.into() }
    }

    /// Of a `file` that could not be read: a file that is not there, or is no file, is damage.
    pub(super) fn of(file: &str, error: io::Error) -> Refusal {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::NotFound, _) => Refusal::damaged(file, "missing"),
            (_, None) => Refusal::damaged(file, error.to_string()),
            (_, Some(_)) => Refusal::Unread { file: file.to_owned(), error },
        }
    }
}

impl FileHashes {
    /// Sizes and hashes of all files in `folder`; they are synced to disk first.
    pub(super) fn of(folder: &Path) -> io::Result<FileHashes> {
        let mut names = templates(folder)?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == TEMPLATES {
                File::open(entry.path())?.sync_all()?;
            } else {
                names.push(name);
            }
        }
        let mut stamps = BTreeMap::new();
        for name in names {
            let path = folder.join(&name);
            File::open(&path)?.sync_all()?;
            stamps.insert(name, stamp(&path)?);
        }
        Ok(FileHashes(stamps))
    }

    /// Writes `hashes.json` in `folder`, synced to disk.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(HASHES);
        std::fs::write(&path, serde_json::to_vec_pretty(self)?)?;
        File::open(&path)?.sync_all()
    }

    /// Reads `hashes.json` in `folder` and checks every file against it.
    pub(super) fn verify(folder: &Path) -> Result<(), Refusal> {
        let text = annulus_files::read(&folder.join(HASHES), LARGEST)
            .map_err(|error| Refusal::of(HASHES, error))?;
        let FileHashes(stamps) = serde_json::from_slice(&text)
            .map_err(|error| Refusal::damaged(HASHES, format!("not what was written ({error})")))?;
        let lacks =
            |name: &str| Err(Refusal::damaged(HASHES, format!("it does not have `{name}`")));
        for needed in [STATE, OPTIMIZER] {
            if !stamps.contains_key(needed) {
                return lacks(needed);
            }
        }
        // Every other file that would be read must have been written with the checkpoint, too.
        for entry in std::fs::read_dir(folder).map_err(|error| Refusal::of("", error))? {
            let entry = entry.map_err(|error| Refusal::of("", error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_read(&name) && !stamps.contains_key(&name) {
                return lacks(&name);
            }
        }
        stamps.iter().try_for_each(|(name, wanted)| {
            let is_plain = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
            if !is_plain && !is_template(name) {
                return Err(Refusal::damaged(HASHES, format!("`{name}` is not a plain file name")));
            }
            held(folder, name, wanted)
        })
    }
}

/// Checks a file of `folder` against its stamp.
fn held(folder: &Path, name: &str, wanted: &Stamp) -> Result<(), Refusal> {
    let found = stamp(&folder.join(name)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Refusal::damaged(name, format!("missing, but `{HASHES}` has it"))
        }
        _ => Refusal::of(name, error),
    })?;
    if found.size != wanted.size {
        let what = format!("{} bytes, but `{HASHES}` has {}", found.size, wanted.size);
        return Err(Refusal::damaged(name, what));
    }
    if found.blake3 != wanted.blake3 {
        return Err(Refusal::damaged(name, format!("its hash is not the one that `{HASHES}` has")));
    }
    Ok(())
}

/// Whether a file of this name is read when a run resumes from a checkpoint, or when it is used as a model.
pub(super) fn is_read(name: &str) -> bool {
    let is_json = Path::new(name).extension().is_some_and(|kind| kind == "json");
    READ.contains(&name) || is_json && BESIDE_TOKENIZER.contains(&name)
}

/// Whether a file of this name is part of a checkpoint or of a model.
pub(crate) fn is_part(name: &str) -> bool {
    let is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    let own = [HASHES, STATE, OPTIMIZER];
    is_shard || is_read(name) || own.contains(&name) || BESIDE_TOKENIZER.contains(&name)
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(annulus_files::open(path)?)?;
    Ok(Stamp { size: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
}
