//! Who builds which cache: locks of the system, which end with the process that holds them.

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::{DataError, Progress};

/// Held by everybody who opens a cache of the folder.
const FOLDER: &str = "caches.lock";

/// How often a lock of another process is tried.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest number of a process that is read, with what is around it.
const LONGEST: u64 = 64;

/// Sweeps what a crash left in `folder`, if nobody else uses it, and keeps others from sweeping while the lock lives.
pub(crate) fn hold(folder: &Path) -> Result<File, DataError> {
    let path = folder.join(FOLDER);
    let failed = |source| DataError::Write { path: path.clone(), source };
    let lock = annulus_files::lock(&path).map_err(failed)?;
    if lock.try_lock().is_ok() {
        annulus_files::sweep(folder).map_err(failed)?;
        lock.unlock().map_err(failed)?;
    }
    lock.lock_shared().map_err(failed)?;
    Ok(lock)
}

/// The lock `path`, once no other process has it; says so while one has.
pub(crate) fn wait_for(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<File, DataError> {
    let failed = |source| DataError::Write { path: path.to_owned(), source };
    let mut lock = annulus_files::lock(path).map_err(failed)?;
    let mut told = false;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut told, true) {
                    let holder = annulus_files::read_to_string(path, LONGEST).ok();
                    let process = holder.and_then(|holder| holder.trim().parse().ok());
                    progress(Progress::Waiting { process });
                }
                thread::sleep(PAUSE);
            }
        }
    }
    let mut sign = || {
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())
    };
    sign().map_err(failed)?;
    Ok(lock)
}
