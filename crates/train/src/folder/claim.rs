//! Whether a run's folder is still the one that this process locked. Everything in it is written by its path, and while the run trains
//! somebody may move or delete the folder and begin another run under the same path.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_files::{Identity, PidLock};

use crate::folder::LOCK;
use crate::{Result, TrainError};

/// The path of a run's folder, and which folder and which lock were there when this process took the lock.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    folder: Identity,
    lock: Identity,
    /// The folder, open, so that no other one gets its inode.
    _open: Arc<File>,
}

impl Claim {
    /// That of the folder `path`, of which this process has the `lock`.
    pub(crate) fn new(path: &Path, lock: &PidLock) -> io::Result<Claim> {
        let open = File::open(path)?;
        let (folder, lock) = (Identity::of(&open)?, lock.identity()?);
        Ok(Claim { path: path.to_owned(), folder, lock, _open: Arc::new(open) })
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Called before anything is written or deleted by the folder's path.
    ///
    /// # Errors
    /// The path leads to another folder than the one that was locked, or to none, or another process has a lock there.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_ours(&self.folder, &self.path) && self.is_ours(&self.lock, &self.path.join(LOCK))
        {
            return Ok(());
        }
        Err(TrainError::checkpoint(
            format!(
                "`{}` is no longer this run's folder: it was moved or replaced",
                self.path.display()
            ),
            "to resume the run, set `output` to where its folder is now, or move it back; stop a run before you move or delete its folder",
        ))
    }

    /// Whether what is at `path` is not known to be another than it was: a lock that somebody deleted leads nobody astray, and a file system
    /// that does not answer says so when something is written.
    fn is_ours(&self, was: &Identity, path: &Path) -> bool {
        match fs::metadata(path) {
            Ok(there) => was.is_same_file(&Identity::from(&there)),
            Err(error) if path == self.path => {
                !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            }
            Err(_) => true,
        }
    }

    /// `error`, or that the folder is another, where that is the reason.
    pub(crate) fn blamed(&self, error: TrainError) -> TrainError {
        self.check().err().unwrap_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_moved_is_claimed_no_more_also_where_another_takes_its_place() {
        let place = tempfile::tempdir().unwrap();
        let [path, moved] = ["run", "moved"].map(|name| place.path().join(name));
        fs::create_dir(&path).unwrap();
        let lock = PidLock::try_lock(&path.join(LOCK)).unwrap().unwrap();
        let claim = Claim::new(&path, &lock).unwrap();
        claim.check().unwrap();
        fs::rename(&path, &moved).unwrap();
        assert_eq!(claim.check().unwrap_err().exit_code(), 4);
        fs::create_dir(&path).unwrap();
        assert!(claim.check().is_err());
        let other = PidLock::try_lock(&path.join(LOCK)).unwrap().unwrap();
        let error = claim.check().unwrap_err();
        assert!(error.to_string().contains("no longer this run's folder"), "{error}");
        Claim::new(&path, &other).unwrap().check().unwrap();
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        claim.check().unwrap();
        // A lock alone that was cleaned away.
        fs::remove_file(path.join(LOCK)).unwrap();
        claim.check().unwrap();
        PidLock::try_lock(&path.join(LOCK)).unwrap().unwrap();
        assert!(claim.check().is_err());
    }
}
