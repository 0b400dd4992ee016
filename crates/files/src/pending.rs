//! Files and folders that appear whole or not at all: made under a name that nobody else uses, and renamed.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir, TempPath};

/// How the names of unfinished files and folders begin and end, with random letters between.
const PREFIX: &str = ".annulus-";
const SUFFIX: &str = ".partial";
const LETTERS: usize = 16;

/// A file that gets its name when it is committed; dropped before, it is removed.
#[derive(Debug)]
pub struct Pending {
    file: BufWriter<File>,
    /// The name until then.
    unfinished: TempPath,
    path: PathBuf,
}

impl Pending {
    /// Begins a file that will be `path`, beside it. What is at `path` stays until [`Pending::commit`].
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> io::Result<Pending> {
        let file = builder(0o666).tempfile_in(parent(path)).map_err(|error| unnamed(&error))?;
        // Errors of the whole would name the unfinished file.
        let (file, unfinished) = file.into_parts();
        Ok(Pending { file: BufWriter::new(file), unfinished, path: path.to_owned() })
    }

    /// The unfinished file, for what writes at places.
    pub fn file_mut(&mut self) -> &mut BufWriter<File> {
        &mut self.file
    }

    /// Puts the file where it belongs, in place of what was there. A link there is replaced, not followed.
    ///
    /// # Errors
    /// What the system says; then nothing has changed at `path`.
    pub fn commit(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_dir()) {
            return Err(io::Error::new(ErrorKind::IsADirectory, "there is a folder of that name"));
        }
        self.unfinished.persist(&self.path).map_err(|error| error.error)?;
        sync_folder(parent(&self.path))
    }
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// `path` holds `bytes` or what it held before, whenever the machine stops.
///
/// # Errors
/// What the system says; then nothing has changed at `path`.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Pending::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

/// A folder that gets its name when it is committed; dropped before, it is removed with all that is in it.
#[derive(Debug)]
pub struct PendingFolder {
    folder: TempDir,
    path: PathBuf,
}

impl PendingFolder {
    /// Begins a folder that will be `path`, beside it.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> io::Result<PendingFolder> {
        let folder = builder(0o777).tempdir_in(parent(path)).map_err(|error| unnamed(&error))?;
        Ok(PendingFolder { folder, path: path.to_owned() })
    }

    /// Where the files of the unfinished folder go.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder where it belongs. Its files are to be synced already.
    ///
    /// # Errors
    /// What the system says, and `AlreadyExists`; then nothing has changed at the folder's place.
    pub fn commit(self) -> io::Result<()> {
        sync_folder(self.folder.path())?;
        if fs::symlink_metadata(&self.path).is_ok() {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "there is something of that name",
            ));
        }
        fs::rename(self.folder.path(), &self.path)?;
        // It is no temporary folder any more.
        let _ = self.folder.keep();
        sync_folder(parent(&self.path))
    }
}

/// Removes a folder with all that is in it. It is renamed first: half of it never has its name.
///
/// # Errors
/// What the system says, and the name of what is left where only a part could be removed.
pub fn remove(folder: &Path) -> io::Result<()> {
    let aside = builder(0o777).tempdir_in(parent(folder)).map_err(|error| unnamed(&error))?;
    let going = aside.path().join("going");
    fs::rename(folder, &going)?;
    let left = aside.path().to_owned();
    aside.close().map_err(|error| {
        let message = format!("{}; the rest of it is in `{}`", unnamed(&error), left.display());
        io::Error::new(error.kind(), message)
    })
}

/// A regular file's content under another name, on disk; of at most `limit` bytes.
///
/// # Errors
/// What the system says, and those of [`crate::read`].
pub fn copy(from: &Path, to: &Path, limit: u64) -> io::Result<()> {
    write(to, &crate::read(from, limit)?)
}

/// Removes the unfinished files and folders that a crash left in `folder`, and nothing else; what cannot be removed stays, since it is in
/// nobody's way. Whoever calls holds a lock that keeps other writers out.
///
/// # Errors
/// What the system says of `folder`.
pub fn sweep(folder: &Path) -> io::Result<()> {
    for leftover in leftovers(folder)? {
        let is_folder = fs::symlink_metadata(&leftover).is_ok_and(|found| found.is_dir());
        let remove = if is_folder { fs::remove_dir_all } else { fs::remove_file };
        let _ = remove(&leftover);
    }
    Ok(())
}

/// The unfinished files and folders in `folder`.
///
/// # Errors
/// What the system says of `folder`.
pub fn leftovers(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_leftover(&entry.file_name()) {
            left.push(entry.path());
        }
    }
    Ok(left)
}

/// Whether `name` is one that only [`Pending`] and [`PendingFolder`] give.
pub fn is_leftover(name: &OsStr) -> bool {
    let letters = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    letters.is_some_and(|letters| {
        letters.len() == LETTERS && letters.bytes().all(|letter| letter.is_ascii_alphanumeric())
    })
}

/// Makes renames in `folder` last.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Names of ours, with the permissions `mode` less the umask: tempfile's own default is the owner alone.
fn builder(mode: u32) -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(LETTERS);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(Permissions::from_mode(mode));
    }
    builder
}

/// The error without the name that was made up: whoever gets it knows the name that was meant.
fn unnamed(error: &io::Error) -> io::Error {
    let said = error.to_string();
    let (message, _) = said.split_once(" at path ").unwrap_or((&said, ""));
    io::Error::new(error.kind(), message.to_owned())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        write(&path, b"old").unwrap();
        let mut begun = Pending::create(&path).unwrap();
        begun.write_all(b"half").unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        drop(begun);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["out.json"]);
    }

    #[test]
    fn only_our_own_leftovers_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let own = PendingFolder::create(&folder.path().join("step-3")).unwrap();
        fs::write(own.path().join("weights"), "half").unwrap();
        let kept = own.folder.keep();
        assert!(is_leftover(kept.file_name().unwrap()));
        for name in ["work.tmp", ".annulus-notes.partial", "step-3.partial", ".annulus-"] {
            fs::write(folder.path().join(name), "years").unwrap();
        }
        sweep(folder.path()).unwrap();
        let left = [".annulus-", ".annulus-notes.partial", "step-3.partial", "work.tmp"];
        assert_eq!(names(folder.path()), left);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_follow_the_umask_and_links_are_replaced() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (plain, ours) = (folder.path().join("plain"), folder.path().join("ours"));
        fs::write(&plain, "").unwrap();
        symlink(&plain, &ours).unwrap();
        write(&ours, b"text").unwrap();
        assert_eq!(fs::read(&plain).unwrap(), b"");
        let mode = |path| fs::symlink_metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&plain), mode(&ours));
    }
}
