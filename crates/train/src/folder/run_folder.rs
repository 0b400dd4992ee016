//! A run folder: who may write to it, and how, so that a crash leaves the old file or the new one and never half of one.

use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use annulus_comm::flight;
use annulus_files::PidLock;

use crate::error::failure;
use crate::folder::claim::Claim;
use crate::folder::{GIVEN, LOCK, RESOLVED, write_atomically};
use crate::{Result, TrainError};

/// How often a folder that is locked is tried again, and the time between: [`holder`] locks it for an instant.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// The number of the process that is writing to a run's folder, as its lock file has it; `None`: no process is.
pub fn holder(folder: &Path) -> Option<String> {
    let path = folder.join(LOCK);
    // Locking would create the file.
    let file = path.is_file().then(|| annulus_files::lock(&path).ok()).flatten()?;
    // Shared, so that of two that look at once neither takes the other for a writer.
    let is_held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    is_held.then(|| PidLock::holder(&path))
}

/// A run folder that this process has locked until this is dropped.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) path: PathBuf,
    /// Whether this process made the folder.
    is_new: bool,
    /// Whether `path` still leads to the folder that was locked.
    pub(crate) claim: Claim,
    _lock: PidLock,
}

impl RunFolder {
    /// Creates `path` if need be, locks it, and removes what a crash left.
    pub(crate) fn open(path: &Path) -> Result<RunFolder> {
        let failed = |error| failure("create", path, &error);
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(failed)?;
        let lock = lock(path)?;
        annulus_files::sweep(path).map_err(failed)?;
        let claim = Claim::new(path, &lock).map_err(failed)?;
        Ok(RunFolder { path: path.to_owned(), is_new, claim, _lock: lock })
    }

    /// Removes the flight records of an earlier attempt.
    pub(crate) fn forget_flight(&self) -> Result<()> {
        self.claim.check()?;
        let folder = self.path.join(flight::FOLDER);
        flight::drop_unheld(&folder).map_err(|error| failure("clear", &folder, &error))
    }

    /// Removes the folder if this process made it and it holds nothing but the lock file: the run never began.
    pub(crate) fn forget_if_new(&self) {
        let alone = || fs::read_dir(&self.path).is_ok_and(|entries| entries.count() == 1);
        if self.is_new && alone() && self.claim.check().is_ok() {
            // If it stays, it does no harm.
            let _ = fs::remove_file(self.path.join(LOCK)).and_then(|()| fs::remove_dir(&self.path));
        }
    }
}

/// Locks a folder.
fn lock(folder: &Path) -> Result<PidLock> {
    let path = folder.join(LOCK);
    for tries in 0..=TRIES {
        if tries > 0 {
            sleep(PAUSE);
        }
        let locked = PidLock::try_lock(&path).map_err(|error| failure("lock", &path, &error))?;
        if let Some(lock) = locked {
            return Ok(lock);
        }
    }
    let holder = PidLock::holder(&path);
    Err(TrainError::checkpoint(
        format!("process {holder} is writing to `{}`", folder.display()),
        "wait until it ends, or set another `output`",
    ))
}

/// Writes the resolved experiment and, unless it is the same, the text as it was given.
pub(crate) fn write_experiment(folder: &Path, given: &str, resolved: &str) -> Result<()> {
    let path = folder.join(RESOLVED);
    let is_own = std::fs::read(&path).is_ok_and(|there| there == given.as_bytes());
    let write = |name, text: &str| {
        let path = folder.join(name);
        write_atomically(&path, text.as_bytes()).map_err(|error| failure("write", &path, &error))
    };
    if !is_own {
        write(GIVEN, given)?;
    }
    write(RESOLVED, resolved)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_second_holder_is_refused_by_the_first_one_s_number() {
        let folder = tempfile::tempdir().unwrap();
        let held = RunFolder::open(folder.path()).unwrap();
        let error = RunFolder::open(folder.path()).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        assert_eq!(holder(folder.path()), Some(std::process::id().to_string()));
        drop(held);
        assert_eq!(holder(folder.path()), None);
        RunFolder::open(folder.path()).unwrap();
    }

    #[test]
    fn one_who_looks_for_a_holder_refuses_nobody() {
        let folder = tempfile::tempdir().unwrap();
        drop(RunFolder::open(folder.path()).unwrap());
        let looks = File::open(folder.path().join(LOCK)).unwrap();
        looks.lock_shared().unwrap();
        assert_eq!(holder(folder.path()), None);
        let ends = std::thread::spawn(move || {
            sleep(3 * PAUSE);
            drop(looks);
        });
        RunFolder::open(folder.path()).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn files_of_others_stay_in_a_run_s_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work.tmp")).unwrap();
        fs::write(folder.path().join("thesis.tmp"), "years").unwrap();
        RunFolder::open(folder.path()).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [LOCK, "thesis.tmp", "work.tmp"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_is_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(LOCK)).unwrap();
        let error = RunFolder::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("links are not followed"), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
