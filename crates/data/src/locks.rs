//! Who builds which cache: locks of the system, which end with the process that holds them.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use annulus_files::PidLock;

use crate::{DataError, Progress};

/// Held by everybody who opens a cache of the folder.
const FOLDER: &str = "caches.lock";

/// How often a lock of another process is tried.
const PAUSE: Duration = Duration::from_millis(50);

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
pub(crate) fn wait_for(
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<PidLock, DataError> {
    let failed = |source| DataError::Write { path: path.to_owned(), source };
    let mut told = false;
    loop {
        if let Some(lock) = PidLock::try_lock(path).map_err(failed)? {
            return Ok(lock);
        }
        if !std::mem::replace(&mut told, true) {
            progress(Progress::Waiting { process: PidLock::holder(path).parse().ok() });
        }
        thread::sleep(PAUSE);
    }
}
