//! Files of a folder that somebody else made: links in it must not lead out of it.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A link leads out of the folder that it is in.
#[derive(Debug)]
pub struct Outside {
    /// The file or folder that the link leads to.
    pub target: PathBuf,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is a link to `{}`, outside of its folder", self.target.display())
    }
}

impl std::error::Error for Outside {}

/// Where `folder/name` really is: in `folder`, or in the `blobs` that a snapshot of Hugging Face's cache links to.
///
/// # Errors
/// What the system says; `PermissionDenied` with [`Outside`] in it for a link that leads elsewhere.
pub fn within(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let target = folder.join(name).canonicalize()?;
    let folder = folder.canonicalize()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
    if target.starts_with(&folder) || blobs.is_some_and(|blobs| target.starts_with(blobs)) {
        return Ok(target);
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, Outside { target }))
}

/// Makes `parent/name` if it is not there, and gives its path. A link is not followed.
///
/// # Errors
/// What the system says; `NotADirectory` for anything but a folder, a link to one included.
pub fn subfolder(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let path = parent.join(name);
    match DirBuilder::new().create(&path) {
        Ok(()) => return Ok(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    if fs::symlink_metadata(&path)?.is_dir() {
        return Ok(path);
    }
    let message = "it is not a folder, and links are not followed where files are written";
    Err(io::Error::new(ErrorKind::NotADirectory, message))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_may_not_lead_out() {
        let base = tempfile::tempdir().unwrap();
        let model = base.path().join("model");
        fs::create_dir(&model).unwrap();
        fs::write(base.path().join("secret"), "s").unwrap();
        fs::write(model.join("real.json"), "{}").unwrap();
        symlink("real.json", model.join("inside.json")).unwrap();
        symlink("../secret", model.join("outside.json")).unwrap();
        assert!(within(&model, "inside.json").unwrap().ends_with("real.json"));
        let error = within(&model, "outside.json").unwrap_err();
        let outside: Outside = error.downcast().unwrap();
        assert!(outside.target.ends_with("secret"));
    }

    #[test]
    fn a_snapshot_of_the_hub_s_cache_links_to_its_blobs() {
        let base = tempfile::tempdir().unwrap();
        let snapshot = base.path().join("snapshots/0123");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir(base.path().join("blobs")).unwrap();
        fs::write(base.path().join("blobs/abc"), "{}").unwrap();
        symlink("../../blobs/abc", snapshot.join("config.json")).unwrap();
        assert!(within(&snapshot, "config.json").unwrap().ends_with("blobs/abc"));
    }

    #[test]
    fn a_link_is_no_subfolder() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), base.path().join("evaluation")).unwrap();
        assert_eq!(
            subfolder(base.path(), "evaluation").unwrap_err().kind(),
            ErrorKind::NotADirectory
        );
        assert_eq!(subfolder(base.path(), "cache").unwrap(), base.path().join("cache"));
        subfolder(base.path(), "cache").unwrap();
    }
}
