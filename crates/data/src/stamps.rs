//! Hashes of files that are not read again while nothing that the system knows of them changes: size, times, inode, device.
//!
//! A file changed a moment ago may change again without its time showing it, so its hash is not kept.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::DataError;
use annulus_files::Identity;

use crate::files::{blocks_of, open, read_error};

/// The largest file of stamps that is read, in bytes: of about a million texts.
const LARGEST: u64 = 1 << 28;

/// How old a change must be to be told from the next by its time.
const FRESH: Duration = Duration::from_secs(2);

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Stamp {
    identity: Identity,
    hash: String,
}

type ByPath = BTreeMap<String, Stamp>;

/// What is kept: the stamps, and the hash of what they look like in JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    hash: String,
    stamps: ByPath,
}

/// Hashes by path, kept in a file beside the caches.
#[derive(Debug)]
pub(crate) struct Stamps {
    /// `None`: they are not kept.
    path: Option<PathBuf>,
    known: ByPath,
    /// Whether every file is read, whatever is known of it.
    verify: bool,
    /// [`FRESH`], but in tests.
    fresh: Duration,
}

impl Stamps {
    /// The stamps kept in `path`; none where they are not as they were written, for then they are made anew.
    ///
    /// # Errors
    /// When `path` is no regular file.
    pub(crate) fn open(path: PathBuf, verify: bool) -> Result<Stamps, DataError> {
        let kept = match annulus_files::read(&path, LARGEST) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(read_error(&path, error));
            }
            kept => kept.ok().and_then(|kept| serde_json::from_slice::<Kept>(&kept).ok()),
        };
        let whole = kept.filter(|kept| hash_of(&kept.stamps).is_ok_and(|hash| hash == kept.hash));
        let known = whole.map(|kept| kept.stamps).unwrap_or_default();
        Ok(Stamps { path: Some(path), known, verify, fresh: FRESH })
    }

    /// Stamps that are forgotten: every file is read.
    pub(crate) fn none() -> Stamps {
        Stamps { path: None, known: BTreeMap::new(), verify: true, fresh: FRESH }
    }

    /// The hash of the contents of `path`, and its size.
    pub(crate) fn of_path(&mut self, path: &Path) -> Result<(blake3::Hash, u64), DataError> {
        self.of(&open(path)?, path, 0)
    }

    /// The hash of the contents of `file`, which is at `path`, from byte `skip` on, and its size.
    pub(crate) fn of(
        &mut self,
        file: &File,
        path: &Path,
        skip: u64,
    ) -> Result<(blake3::Hash, u64), DataError> {
        let identity = crate::files::identity(file, path)?;
        let name = format!("{skip} {}", absolute(path).display());
        if !self.verify
            && let Some(stamp) = self.known.get(&name)
            && stamp.identity == identity
            && let Ok(hash) = blake3::Hash::from_hex(&stamp.hash)
        {
            return Ok((hash, identity.size));
        }
        let hash = hash_from(file, path, skip, identity)?;
        if identity.is_settled(self.fresh) {
            self.known.insert(name, Stamp { identity, hash: hash.to_hex().to_string() });
        } else {
            self.known.remove(&name);
        }
        Ok((hash, identity.size))
    }

    /// Keeps them for the next time. Losing them costs that time a pass over the files.
    pub(crate) fn save(self) -> Result<(), DataError> {
        let Some(path) = self.path else { return Ok(()) };
        let write = || {
            let kept = Kept { hash: hash_of(&self.known)?, stamps: self.known };
            annulus_files::write(&path, &serde_json::to_vec(&kept)?)
        };
        write().map_err(|source| DataError::Write { path: path.clone(), source })
    }
}

fn hash_of(stamps: &ByPath) -> serde_json::Result<String> {
    Ok(blake3::hash(&serde_json::to_vec(stamps)?).to_hex().to_string())
}

fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

/// The hash of `file` from byte `skip` on; it is still what it was known as then.
pub(crate) fn hash_from(
    file: &File,
    path: &Path,
    skip: u64,
    identity: Identity,
) -> Result<blake3::Hash, DataError> {
    let mut hasher = blake3::Hasher::new();
    blocks_of(file, path, skip..identity.size, &mut |block| {
        hasher.update(block);
        Ok(())
    })?;
    if crate::files::identity(file, path)? != identity {
        return Err(DataError::Changed { path: path.to_owned() });
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// Longer than the system's clock of file times takes for a step.
    const STEP: Duration = Duration::from_millis(30);

    fn stamps(folder: &Path, verify: bool) -> Stamps {
        Stamps { fresh: Duration::ZERO, ..Stamps::open(folder.join("stamps"), verify).unwrap() }
    }

    fn hash(text: &str) -> blake3::Hash {
        blake3::hash(text.as_bytes())
    }

    #[test]
    fn a_text_of_the_same_size_and_time_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "some text").unwrap();
        std::thread::sleep(STEP);
        let mut known = stamps(folder.path(), false);
        assert_eq!(known.of_path(&path).unwrap(), (hash("some text"), 9));
        known.save().unwrap();
        let written = path.metadata().unwrap().modified().unwrap();
        fs::write(&path, "sOme text").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        assert_eq!(stamps(folder.path(), false).of_path(&path).unwrap().0, hash("sOme text"));
        // A file put in its place, as a restored backup is.
        let other = folder.path().join("b.txt");
        fs::write(&other, "soMe text").unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(written).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(stamps(folder.path(), false).of_path(&path).unwrap().0, hash("soMe text"));
    }

    #[test]
    fn an_unchanged_file_is_read_again_only_to_verify() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "some text").unwrap();
        std::thread::sleep(STEP);
        let mut known = stamps(folder.path(), false);
        known.of_path(&path).unwrap();
        for stamp in known.known.values_mut() {
            stamp.hash = hash("another").to_hex().to_string();
        }
        known.save().unwrap();
        assert_eq!(stamps(folder.path(), false).of_path(&path).unwrap().0, hash("another"));
        assert_eq!(stamps(folder.path(), true).of_path(&path).unwrap().0, hash("some text"));
    }

    #[test]
    fn altered_stamps_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "some text").unwrap();
        std::thread::sleep(STEP);
        let mut known = stamps(folder.path(), false);
        known.of_path(&path).unwrap();
        known.save().unwrap();
        let kept = fs::read_to_string(folder.path().join("stamps")).unwrap();
        assert!(!stamps(folder.path(), false).known.is_empty());
        let bad = kept.replace("\"size\":9", "\"size\":8");
        assert_ne!(bad, kept);
        for bad in [&bad, &kept[..kept.len() / 2], ""] {
            fs::write(folder.path().join("stamps"), bad).unwrap();
            assert!(stamps(folder.path(), false).known.is_empty());
        }
    }
}
