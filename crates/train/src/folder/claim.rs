//! Whether a run's folder is still the one that this process locked. Everything in it is written by its path, and while the run trains
//! somebody may move or delete the folder and begin another run under the same path.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use annulus_files::{Identity, PidLock};

use crate::error::failure;
use crate::folder::LOCK;
use crate::{Result, TrainError};

/// The path of a run's folder, and which file its lock was when this process took it.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    lock: Identity,
}

impl Claim {
    /// That of the folder `path`, of which this process has the `lock`.
    pub(crate) fn new(path: &Path, lock: &PidLock) -> io::Result<Claim> {
        Ok(Claim { path: path.to_owned(), lock: lock.identity()? })
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Called before anything is written or deleted by the folder's path.
    ///
    /// # Errors
    /// The path leads to another folder than the one that was locked, or to none.
    pub(crate) fn check(&self) -> Result<()> {
        let lock = self.path.join(LOCK);
        match fs::symlink_metadata(&lock) {
            Ok(there) if self.lock.is_same_file(&Identity::from(&there)) => Ok(()),
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Err(failure("look at", &lock, &error))
            }
            _ => Err(TrainError::checkpoint(
                format!(
                    "`{}` is no longer this run's folder: it was moved or replaced",
                    self.path.display()
                ),
                "to resume the run, set `output` to where its folder is now, or move it back; stop a run before you move or delete its folder",
            )),
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
    }
}
