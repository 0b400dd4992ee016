//! A run folder: who may write in it, and how, so that a crash leaves the old or the new and never
//! a half.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{Result, TrainError};

/// The file that a live run holds.
const LOCK: &str = "run.lock";
/// How unfinished files and folders end.
pub(crate) const TEMPORARY: &str = ".tmp";

/// A run folder that is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) path: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// Creates `path` if need be, takes its lock, sweeps what a crash left.
    pub(crate) fn open(path: &Path) -> Result<RunFolder> {
        let failed = |error| failure("create", path, &error);
        fs::create_dir_all(path).map_err(failed)?;
        let lock = lock(path)?;
        sweep(path).map_err(failed)?;
        Ok(RunFolder { path: path.to_owned(), _lock: lock })
    }
}

/// The system releases the lock when the process ends, however it ends: a file that a crash left
/// behind bars nobody.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let failed = |error| failure("lock", &path, &error);
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            return Err(TrainError::Checkpoint {
                message: format!("process {} is writing to `{}`", holder.trim(), folder.display()),
                hint: Some("wait until it ends, or set another `output`".into()),
            });
        }
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

/// Removes unfinished files and folders. Only the holder of the lock may.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().ends_with(TEMPORARY) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// `path` holds `bytes` or what it held before, whenever the machine stops.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// The name under which `path` is made.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(TEMPORARY);
    path.with_file_name(name)
}

/// Makes renames in `folder` last.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// An error of the file system in a run folder.
pub(crate) fn failure(what: &str, path: &Path, error: &io::Error) -> TrainError {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull => Some("free some space, or set another `output`".into()),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Some("set an `output` that can be written".into())
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            Some("set an `output` that is a folder, or that does not exist yet".into())
        }
        _ => None,
    };
    TrainError::Checkpoint { message: format!("cannot {what} `{}`: {error}", path.display()), hint }
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
        drop(held);
        RunFolder::open(folder.path()).unwrap();
    }

    #[test]
    fn leftovers_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("step-3.tmp")).unwrap();
        fs::write(folder.path().join("LATEST.tmp"), "step-3").unwrap();
        fs::create_dir(folder.path().join("step-2")).unwrap();
        RunFolder::open(folder.path()).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [LOCK, "step-2"]);
    }
}
