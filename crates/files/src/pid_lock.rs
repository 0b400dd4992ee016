//! Locks between processes, as files that say which process has them.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::Path;

use crate::Identity;

/// The longest text of a lock file that is read, in bytes: a number and what is around it.
const LONGEST: u64 = 64;

/// A lock file that holds the number of the process that has the lock. The system releases the lock when the process ends, however it
/// ends, so a file that a crash left behind blocks nobody.
#[derive(Debug)]
pub struct PidLock {
    file: File,
}

impl PidLock {
    /// Locks the file `path`, creating it if need be, and writes this process's number into it. `None`: another process has the lock.
    /// A link is not followed.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_lock(path: &Path) -> io::Result<Option<PidLock>> {
        let mut file = crate::lock(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Some(PidLock { file }))
    }

    /// Which file the lock is on: another may lie under its path by now.
    ///
    /// # Errors
    /// What the system says.
    pub fn identity(&self) -> io::Result<Identity> {
        Identity::of(&self.file)
    }

    /// The number in the lock file `path`, which is that of the process that has the lock, or had it last; empty: none is there, or it
    /// cannot be read.
    pub fn holder(path: &Path) -> String {
        crate::read_to_string(path, LONGEST).unwrap_or_default().trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_lock_and_says_who() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.lock");
        assert_eq!(PidLock::holder(&path), "");
        std::fs::write(&path, "a longer number of a process that crashed\n").unwrap();
        let held = PidLock::try_lock(&path).unwrap();
        assert!(held.is_some());
        assert_eq!(PidLock::holder(&path), std::process::id().to_string());
        assert!(PidLock::try_lock(&path).unwrap().is_none());
        drop(held);
        assert!(PidLock::try_lock(&path).unwrap().is_some());
    }
}
