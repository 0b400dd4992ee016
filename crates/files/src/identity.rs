//! What tells a file from another, and from itself after a change, without reading it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A file's size, times and place. Programs can set the time of the last write to what it was before; the time of the last change of
/// the file or of what is known of it is the system's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The size in bytes.
    pub size: u64,
    /// When the contents were last written: seconds since 1970, and nanoseconds.
    modified: (i64, i64),
    /// When the file or its metadata last changed: seconds since 1970, and nanoseconds.
    changed: (i64, i64),
    inode: u64,
    device: u64,
}

impl Identity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(file: &File) -> io::Result<Identity> {
        Ok(Identity::from(&file.metadata()?))
    }

    /// Whether both are of one file, which may have changed between.
    pub fn is_same_file(&self, other: &Identity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether the last change is at least so old.
    pub fn is_settled(&self, old: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let since = Duration::new(seconds.max(0) as u64, nanoseconds.clamp(0, 999_999_999) as u32);
        let age = SystemTime::now().duration_since(UNIX_EPOCH + since);
        age.is_ok_and(|age| age >= old)
    }
}

impl From<&Metadata> for Identity {
    fn from(found: &Metadata) -> Identity {
        Identity {
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            inode: found.ino(),
            device: found.dev(),
        }
    }
}
