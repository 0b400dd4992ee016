//! The room on disks: how much there is, and errors that say that there is none.

use std::io::{self, ErrorKind};
use std::path::Path;

/// Whether `error` says that nothing more can be written there: the disk is full, or the user's quota on it.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Bytes that the disk of `path`, or of where it would be made, has room for; `None` where the system does not say.
pub fn free_space(path: &Path) -> Option<u64> {
    let here = |folder| if folder == Path::new("") { Path::new(".") } else { folder };
    let there = path.ancestors().map(here).find(|folder| folder.exists());
    let disk = rustix::fs::statvfs(there?).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_as_full_as_a_disk() {
        assert!(is_full(&io::Error::from_raw_os_error(libc::ENOSPC)));
        assert!(is_full(&io::Error::from_raw_os_error(libc::EDQUOT)));
        assert!(!is_full(&io::Error::from_raw_os_error(libc::EACCES)));
    }

    #[test]
    fn the_disk_of_what_is_not_there_yet_has_space() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_space(&folder.path().join("cache/models")).is_some());
        assert!(free_space(Path::new("nothing/here")).is_some());
    }
}
