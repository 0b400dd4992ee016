//! The cache of Hugging Face's programs: `models--owner--name/` with `blobs/` by hash, `snapshots/`
//! of links by commit, and `refs/` from revisions to commits; empty files in `.no_exist/` say what a
//! commit has not. Beside them `.annulus/` keeps which files were hashed, and what they were then.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annulus_files::Identity;
use annulus_files::hugging_face::{
    BESIDE_TOKENIZER, CONFIG, GENERATION_CONFIG, TEMPLATES, TOKENIZER, WEIGHTS, WEIGHTS_INDEX,
    is_plain, is_template,
};
use annulus_tensors::{Room, read_index};
use hf_hub::{Cache, Repo, RepoType};

use crate::hash::Hash;
use crate::name::is_commit;
use crate::watch::{Event, Watch};
use crate::{HubError, Name, Options, Want};

/// Bytes of a reference, a stamp.
const SHORT: u64 = 1 << 12;

/// The longest index that is fetched, in bytes: a longer one could not be loaded.
pub(crate) const LONGEST_INDEX: u64 = Room::LONGEST;

/// The most tensors that an index may name.
const MOST_TENSORS: usize = 1 << 16;

/// How often a lock of another program is tried.
const AGAIN: Duration = Duration::from_millis(200);

/// The part of the cache that is one repository's.
pub(crate) struct Store {
    cache: Cache,
    repository: String,
    /// Files are hashed whatever is known of them.
    verify: bool,
}

impl Store {
    pub(crate) fn new(options: &Options, name: &Name) -> Store {
        let cache = Cache::new(options.cache.clone());
        Store { cache, repository: name.repository.clone(), verify: options.verify }
    }

    fn repo(&self, revision: &str) -> Repo {
        let repository = self.repository.clone();
        Repo::with_revision(repository, RepoType::Model, revision.to_owned())
    }

    fn folder(&self) -> PathBuf {
        self.cache.path().join(self.repo("").folder_name())
    }

    /// The folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.repo(commit)).pointer_path(commit)
    }

    /// The commit that a revision was when it was last asked for.
    pub(crate) fn commit(&self, name: &Name) -> Option<String> {
        if name.is_commit() {
            return Some(name.revision.clone());
        }
        let path = self.folder().join("refs").join(&name.revision);
        let written = annulus_files::read_to_string(&path, SHORT).ok()?;
        Some(written.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// What `want` lacks of a commit; `known`: also what is not known to be left out by it.
    pub(crate) fn lacks(
        &self,
        commit: &str,
        want: Want,
        known: bool,
    ) -> Result<Option<String>, HubError> {
        let folder = self.snapshot(commit);
        let lacking = |file: &str| {
            let is_there = folder.join(file).exists();
            let what = if is_there { "is not what its hash says" } else { "is missing" };
            Ok(Some(format!("`{file}` {what}")))
        };
        if !self.has(commit, CONFIG)? {
            return lacking(CONFIG);
        }
        let absent = self.folder().join(".no_exist").join(commit);
        let named = templates(&folder);
        for file in description().chain(named.iter().map(String::as_str)) {
            // Also a link that leads nowhere.
            let is_there = fs::symlink_metadata(folder.join(file)).is_ok();
            let is_wanted = is_there || known && !absent.join(file).exists();
            if is_wanted && !self.has(commit, file)? {
                return lacking(file);
            }
        }
        if want == Want::Description || self.has(commit, WEIGHTS)? {
            return Ok(None);
        }
        let Ok(shards) = shards(&folder.join(WEIGHTS_INDEX)) else { return lacking(WEIGHTS) };
        for shard in shards {
            if !self.has(commit, &shard)? {
                return lacking(&shard);
            }
        }
        Ok(None)
    }

    /// Whether the commit has a file here, with the contents that it is named by.
    pub(crate) fn has(&self, commit: &str, file: &str) -> Result<bool, HubError> {
        let path = self.snapshot(commit).join(file);
        let Ok(blob) = path.canonicalize() else { return Ok(false) };
        let hash = blob.file_name().and_then(|name| Hash::read(name.to_str()?));
        // Where links cannot be made, files have no hash in their names.
        let Some(hash) = hash else { return Ok(true) };
        self.is(&blob, &hash)
    }

    /// Whether the file of this hash is here; one that is not what its name says is removed.
    pub(crate) fn holds(&self, hash: &Hash) -> Result<bool, HubError> {
        let blob = self.blob(hash);
        if !blob.exists() {
            return Ok(false);
        }
        let is = self.is(&blob, hash)?;
        if !is {
            fs::remove_file(&blob).map_err(|source| HubError::Store { path: blob, source })?;
        }
        Ok(is)
    }

    /// Takes what has arrived for the file of this hash, which it is.
    pub(crate) fn keep(&self, part: &Path, hash: &Hash) -> Result<(), HubError> {
        let blob = self.blob(hash);
        fs::rename(part, &blob).map_err(|source| HubError::Store { path: blob.clone(), source })?;
        self.stamp(&blob, hash);
        Ok(())
    }

    /// Whether the file at `blob` has this hash: it is hashed unless it is the one that was, unchanged.
    fn is(&self, blob: &Path, hash: &Hash) -> Result<bool, HubError> {
        let unread = |source| HubError::Store { path: blob.to_owned(), source };
        let file = annulus_files::open(blob).map_err(unread)?;
        let now = Identity::of(&file).map_err(unread)?;
        let stamp = annulus_files::read(&self.stamp_of(hash), SHORT).ok();
        let known = stamp.and_then(|stamp| serde_json::from_slice::<Identity>(&stamp).ok());
        if known == Some(now) && !self.verify {
            return Ok(true);
        }
        let is = hash.of(blob).map_err(unread)? == *hash;
        if is {
            self.stamp(blob, hash);
        }
        Ok(is)
    }

    fn stamp_of(&self, hash: &Hash) -> PathBuf {
        self.folder().join(".annulus").join(hash.text())
    }

    /// Keeps what the file at `blob` is, so that it need not be hashed again. A cache that others own has no stamps.
    fn stamp(&self, blob: &Path, hash: &Hash) {
        let path = self.stamp_of(hash);
        let write = || -> io::Result<()> {
            let identity = Identity::of(&annulus_files::open(blob)?)?;
            fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            annulus_files::write(&path, serde_json::to_string(&identity)?.as_bytes())
        };
        let _ = write();
    }

    /// Bytes that its disk has room for, as far as the system says.
    pub(crate) fn free(&self) -> u64 {
        annulus_files::free_space(self.cache.path()).unwrap_or(u64::MAX)
    }

    /// Whether so many bytes more have room.
    pub(crate) fn has_room(&self, bytes: u64) -> Result<(), HubError> {
        let free = self.free();
        if bytes <= free {
            return Ok(());
        }
        let message = format!("{bytes} bytes are to come, and the disk has room for {free}");
        let source = io::Error::new(io::ErrorKind::StorageFull, message);
        Err(HubError::Store { path: self.cache.path().clone(), source })
    }

    /// How many of the `bytes` of a file are still to come; where its hash is not known, all of them.
    pub(crate) fn to_come(&self, hash: Option<&Hash>, bytes: u64) -> u64 {
        let Some(blob) = hash.map(|hash| self.blob(hash)) else { return bytes };
        // What is not what its hash says is removed, and leaves as much room.
        let held = fs::metadata(&blob).map_or_else(|_| length(&part_of(&blob)), |file| file.len());
        bytes.saturating_sub(held)
    }

    /// Where a file of this hash is, or shall be.
    pub(crate) fn blob(&self, hash: &Hash) -> PathBuf {
        self.folder().join("blobs").join(hash.text())
    }

    /// Waits until no other program writes the file of this hash, and says so; it is ours until this is dropped.
    pub(crate) fn lock(&self, hash: &Hash, watch: &Watch) -> Result<File, HubError> {
        let folder = self.cache.path().join(".locks").join(self.repo("").folder_name());
        let path = folder.join(format!("{}.lock", hash.text()));
        let unusable = |source| HubError::Store { path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(unusable)?;
        let file = annulus_files::lock(&path).map_err(unusable)?;
        let mut said = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(source)) => return Err(unusable(source)),
                Err(TryLockError::WouldBlock) if !std::mem::replace(&mut said, true) => {
                    watch.tell(Event::Locked(path.clone()))?;
                }
                Err(TryLockError::WouldBlock) => watch.sleep(AGAIN)?,
            }
        }
    }

    /// Makes the file of this hash a file of the commit. Another process may be opening it: it is never away.
    pub(crate) fn link(&self, hash: &Hash, commit: &str, file: &str) -> Result<(), HubError> {
        let (path, blob) = (self.snapshot(commit).join(file), self.blob(hash));
        let link = || {
            if path.canonicalize().is_ok_and(|found| blob.canonicalize().is_ok_and(|b| b == found))
            {
                return Ok(());
            }
            let folder = path.parent().unwrap_or(&path);
            fs::create_dir_all(folder)?;
            let made = folder.join(format!(".{}.link", hash.text()));
            match fs::remove_file(&made) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // Relative: the cache may be moved.
            let up = "../".repeat(2 + file.matches('/').count());
            link(&blob, &format!("{up}blobs/{}", hash.text()), &made)?;
            fs::rename(&made, &path)
        };
        link().map_err(|source| HubError::Store { path: path.clone(), source })
    }

    /// Keeps that the commit has no such file.
    pub(crate) fn leave_out(&self, commit: &str, file: &str) -> Result<(), HubError> {
        let folder = self.folder().join(".no_exist").join(commit);
        let path = folder.join(file);
        let write = || fs::create_dir_all(&folder).and_then(|()| annulus_files::write(&path, b""));
        write().map_err(|source| HubError::Store { path: path.clone(), source })
    }

    /// Keeps which commit a revision is.
    pub(crate) fn point(&self, name: &Name, commit: &str) -> Result<(), HubError> {
        if name.is_commit() {
            return Ok(());
        }
        let path = self.folder().join("refs").join(&name.revision);
        let write = || -> io::Result<()> {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            annulus_files::write(&path, commit.as_bytes())
        };
        write().map_err(|source| HubError::Store { path: path.clone(), source })
    }
}

/// Where a file lies until all of it is here.
pub(crate) fn part_of(blob: &Path) -> PathBuf {
    blob.with_extension("incomplete")
}

/// The files that describe a model and how its text is read: a repository need not have them, but for its config.json.
pub(crate) fn description<'a>() -> impl Iterator<Item = &'a str> {
    [CONFIG, GENERATION_CONFIG, TOKENIZER].into_iter().chain(BESIDE_TOKENIZER)
}

/// The chat templates with names that a snapshot has.
fn templates(snapshot: &Path) -> Vec<String> {
    let entries = fs::read_dir(snapshot.join(TEMPLATES)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(format!("{TEMPLATES}/{}", entry.file_name().to_str()?));
    entries.filter_map(name).filter(|file| is_template(file)).collect()
}

/// Of a file, and not of what a link leads to.
pub(crate) fn length(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |file| file.len())
}

/// The files that an index names.
pub(crate) fn shards(index: &Path) -> Result<BTreeSet<String>, String> {
    let index = read_index(index, index, &mut Room::of(MOST_TENSORS));
    let index = index.map_err(|error| error.problem.to_string())?;
    let shards: BTreeSet<String> = index.into_values().collect();
    match shards.iter().find(|shard| !is_plain(shard)) {
        Some(shard) => Err(format!("`{}` is not a plain file name", shard.escape_debug())),
        None => Ok(shards),
    }
}

#[cfg(unix)]
fn link(_: &Path, relative: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, path)
}

#[cfg(not(unix))]
fn link(target: &Path, _: &str, path: &Path) -> io::Result<()> {
    fs::hard_link(target, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(folder: &Path) -> Store {
        let options = Options {
            endpoint: String::new(),
            cache: folder.to_owned(),
            token: None,
            offline: false,
            patience: Duration::ZERO,
            verify: false,
        };
        Store::new(&options, &"hf://owner/name".parse().unwrap())
    }

    /// The link of another process stays as it is, and one that leads elsewhere is replaced in one step.
    #[cfg(unix)]
    #[test]
    fn a_file_that_is_linked_stays_linked() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let (hash, commit) = (Hash::read(&"a".repeat(64)).unwrap(), "b".repeat(40));
        fs::create_dir_all(store.blob(&hash).parent().unwrap()).unwrap();
        fs::write(store.blob(&hash), "text").unwrap();
        let path = store.snapshot(&commit).join(CONFIG);
        let linked = || {
            store.link(&hash, &commit, CONFIG).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
            assert_eq!(fs::read_dir(store.snapshot(&commit)).unwrap().count(), 1);
            let link = fs::symlink_metadata(&path).unwrap();
            (link.ino(), link.ctime_nsec())
        };
        let first = linked();
        assert_eq!(linked(), first);
        for there in ["../../blobs/nothing", "."] {
            fs::remove_file(&path).unwrap();
            symlink(there, &path).unwrap();
            linked();
        }
    }

    #[test]
    fn what_lies_in_the_cache_is_not_to_come() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let hash = Hash::read(&"a".repeat(64)).unwrap();
        let blob = store.blob(&hash);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        let to_come = || store.to_come(Some(&hash), 100);
        assert_eq!((to_come(), store.to_come(None, 100)), (100, 100));
        fs::write(part_of(&blob), [0; 30]).unwrap();
        assert_eq!(to_come(), 70);
        fs::write(part_of(&blob), [0; 130]).unwrap();
        assert_eq!(to_come(), 0);
        fs::rename(part_of(&blob), &blob).unwrap();
        assert_eq!(to_come(), 0);
    }
}
