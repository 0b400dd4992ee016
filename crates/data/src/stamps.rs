//! Hashes of files that are not read again while their size and time of change stay the same.
//!
//! A file changed within [`FRESH`] may change again without its time showing it, so its hash is not
//! kept.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::files::{blocks, read_error};

/// How old a change must be to be told from the next by its time.
const FRESH: Duration = Duration::from_secs(2);

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    /// Nanoseconds since 1970.
    changed: u64,
    hash: String,
}

/// Hashes by path, kept in a file beside the caches.
#[derive(Debug)]
pub(crate) struct Stamps {
    path: PathBuf,
    stamps: BTreeMap<String, Stamp>,
}

impl Stamps {
    /// The stamps kept in `path`; none where it cannot be read, for then they are made anew.
    pub(crate) fn open(path: PathBuf) -> Stamps {
        let kept = fs::read(&path).ok();
        let stamps = kept.and_then(|kept| serde_json::from_slice(&kept).ok()).unwrap_or_default();
        Stamps { path, stamps }
    }

    /// The hash of the contents of `file` from byte `skip` on, and its size.
    pub(crate) fn hash(
        &mut self,
        file: &Path,
        skip: usize,
    ) -> Result<(blake3::Hash, u64), DataError> {
        let (size, changed) = look(file)?;
        let name = format!("{skip} {}", absolute(file).display());
        if let Some(stamp) = self.stamps.get(&name)
            && (stamp.size, u128::from(stamp.changed)) == (size, changed.as_nanos())
            && let Ok(hash) = blake3::Hash::from_hex(&stamp.hash)
        {
            return Ok((hash, size));
        }
        let hash = hash_from(file, skip)?;
        let age = SystemTime::now().duration_since(UNIX_EPOCH + changed).unwrap_or_default();
        let (changed, hex) = (changed.as_nanos() as u64, hash.to_hex().to_string());
        if age > FRESH {
            self.stamps.insert(name, Stamp { size, changed, hash: hex });
        } else {
            self.stamps.remove(&name);
        }
        Ok((hash, size))
    }

    /// Keeps them for the next time. Losing them costs that time a pass over the files.
    pub(crate) fn save(&self) -> Result<(), DataError> {
        let error = |source| DataError::Write { path: self.path.clone(), source };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let text = serde_json::to_vec(&self.stamps).map_err(|source| error(source.into()))?;
        // A name of its own: another process or thread may save at the same moment.
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let temporary = folder.join(format!("{process}-{thread:?}.stamps-partial"));
        File::create(&temporary).and_then(|mut file| file.write_all(&text)).map_err(error)?;
        fs::rename(&temporary, &self.path).map_err(error)
    }
}

fn look(file: &Path) -> Result<(u64, Duration), DataError> {
    let about = file.metadata().map_err(|source| read_error(file, source))?;
    let changed = about.modified().map_err(|source| read_error(file, source))?;
    Ok((about.len(), changed.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

fn hash_from(file: &Path, mut skip: usize) -> Result<blake3::Hash, DataError> {
    let mut hasher = blake3::Hasher::new();
    blocks(file, &mut |block| {
        let skipped = skip.min(block.len());
        hasher.update(&block[skipped..]);
        skip -= skipped;
        Ok(())
    })?;
    Ok(hasher.finalize())
}
