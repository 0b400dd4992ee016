//! A run folder: who may write to it, and how, so that a crash leaves the old file or the new one and never half of one.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use annulus_comm::flight;

use crate::error::failure;
use crate::folder::{GIVEN, LOCK, RESOLVED, write_atomically};
use crate::{Result, TrainError};

/// The most bytes of a process's number that are read from a lock file.
const LONGEST: u64 = 64;

/// The number of the process that is writing to a run's folder, as its lock file has it; `None`: no process is.
pub fn holder(folder: &Path) -> Option<String> {
    let path = folder.join(LOCK);
    // Locking would create the file.
    let file = path.is_file().then(|| annulus_files::lock(&path).ok()).flatten()?;
    let is_held = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    is_held.then(|| {
        annulus_files::read_to_string(&path, LONGEST).unwrap_or_default().trim().to_owned()
    })
}

/// A run folder that this process has locked until this is dropped.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) path: PathBuf,
    /// Whether this process made the folder.
    is_new: bool,
    _lock: File,
}

impl RunFolder {
    /// Creates `path` if need be, locks it, and removes what a crash left.
    pub(crate) fn open(path: &Path) -> Result<RunFolder> {
        let failed = |error| failure("create", path, &error);
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(failed)?;
        let lock = lock(path)?;
        annulus_files::sweep(path).map_err(failed)?;
        Ok(RunFolder { path: path.to_owned(), is_new, _lock: lock })
    }

    /// Removes the flight records of an earlier attempt.
    pub(crate) fn forget_flight(&self) -> Result<()> {
        let folder = self.path.join(flight::FOLDER);
        flight::drop_unheld(&folder).map_err(|error| failure("clear", &folder, &error))
    }

    /// Removes the folder if this process made it and it holds nothing but the lock file: the run never began.
    pub(crate) fn forget_if_new(&self) {
        let alone = || fs::read_dir(&self.path).is_ok_and(|entries| entries.count() == 1);
        if self.is_new && alone() {
            // If it stays, it does no harm.
            let _ = fs::remove_file(self.path.join(LOCK)).and_then(|()| fs::remove_dir(&self.path));
        }
    }
}

/// Locks a folder. The system releases the lock when the process ends, however it ends, so a file that a crash left behind blocks nobody.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let failed = |error| failure("lock", &path, &error);
    let mut file = annulus_files::lock(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let holder = annulus_files::read_to_string(&path, LONGEST).unwrap_or_default();
            return Err(TrainError::checkpoint(
                format!("process {} is writing to `{}`", holder.trim(), folder.display()),
                "wait until it ends, or set another `output`",
            ));
        }
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
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
