//! The cache of Hugging Face's programs: `models--owner--name/` with `blobs/` by hash, `snapshots/`
//! of links by commit, and `refs/` from revisions to commits; empty files in `.no_exist/` say what a
//! commit has not.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;

use crate::hash::Hash;
use crate::name::is_commit;
use crate::{HubError, Name, Options, Want};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// What describes a model and how its text is read, where it is there.
pub(crate) const DESCRIPTION: [&str; 6] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The part of the cache that is one repository's.
pub(crate) struct Store {
    cache: Cache,
    repository: String,
}

impl Store {
    pub(crate) fn new(options: &Options, name: &Name) -> Store {
        let cache = Cache::new(options.cache.clone());
        Store { cache, repository: name.repository.clone() }
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
        let written = fs::read_to_string(self.folder().join("refs").join(&name.revision)).ok()?;
        Some(written.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// What `want` lacks of a commit; `known`: also what is not known to be left out by it.
    pub(crate) fn lacks(&self, commit: &str, want: Want, known: bool) -> Option<String> {
        let folder = self.snapshot(commit);
        let is_there = |file: &str| folder.join(file).exists();
        let lacking = |file: &str| Some(format!("`{file}` is missing"));
        if !is_there(CONFIG) {
            return lacking(CONFIG);
        }
        let absent = self.folder().join(".no_exist").join(commit);
        let unknown = |file: &&&str| !is_there(file) && !absent.join(file).exists();
        if let Some(file) = DESCRIPTION.iter().find(unknown).filter(|_| known) {
            return lacking(file);
        }
        if want == Want::Description || is_there(SINGLE) {
            return None;
        }
        let Ok(shards) = shards(&folder.join(INDEX)) else { return lacking(SINGLE) };
        shards.iter().find(|shard| !is_there(shard)).and_then(|shard| lacking(shard))
    }

    /// Where a file of this hash is, or shall be.
    pub(crate) fn blob(&self, hash: &Hash) -> PathBuf {
        self.folder().join("blobs").join(hash.text())
    }

    /// Waits until no other program writes the file of this hash; it is ours until this is dropped.
    pub(crate) fn lock(&self, hash: &Hash) -> Result<File, HubError> {
        let folder = self.cache.path().join(".locks").join(self.repo("").folder_name());
        let path = folder.join(format!("{}.lock", hash.text()));
        let take = || {
            fs::create_dir_all(&folder)?;
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        take().map_err(|source| HubError::Store { path: path.clone(), source })
    }

    /// Makes the file of this hash a file of the commit.
    pub(crate) fn link(&self, hash: &Hash, commit: &str, file: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(file);
        let link = || {
            fs::create_dir_all(self.snapshot(commit))?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            link(&self.blob(hash), hash.text(), &path)
        };
        link().map_err(|source| HubError::Store { path: path.clone(), source })
    }

    /// Keeps that the commit has no such file.
    pub(crate) fn leave_out(&self, commit: &str, file: &str) -> Result<(), HubError> {
        let folder = self.folder().join(".no_exist").join(commit);
        let path = folder.join(file);
        let write = || fs::create_dir_all(&folder).and_then(|()| fs::write(&path, ""));
        write().map_err(|source| HubError::Store { path: path.clone(), source })
    }

    /// Keeps which commit a revision is.
    pub(crate) fn point(&self, name: &Name, commit: &str) -> Result<(), HubError> {
        if name.is_commit() {
            return Ok(());
        }
        let repo = self.cache.repo(self.repo(&name.revision));
        let path = || self.folder().join("refs").join(&name.revision);
        repo.create_ref(commit).map_err(|source| HubError::Store { path: path(), source })
    }
}

/// The files that an index names.
pub(crate) fn shards(index: &Path) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let text = fs::read(index).map_err(|error| error.to_string())?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|shard| shard.contains(['/', '\\', '\0']) || shard.starts_with('.')) {
        Some(shard) => Err(format!("`{}` is no plain file name", shard.escape_debug())),
        None => Ok(shards),
    }
}

#[cfg(unix)]
fn link(_: &Path, blob: &str, path: &Path) -> io::Result<()> {
    // Relative: the cache may be moved.
    std::os::unix::fs::symlink(Path::new("../../blobs").join(blob), path)
}

#[cfg(not(unix))]
fn link(target: &Path, _: &str, path: &Path) -> io::Result<()> {
    fs::hard_link(target, path)
}
