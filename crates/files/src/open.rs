//! Opening regular files, and reading them up to a bound.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a regular file for reading, following links. Never waits.
///
/// # Errors
/// What the system says; `InvalidInput` for a folder, a FIFO, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    // Asked before, because opening a device can do something; and after, because the name can mean another file by then.
    regular(&fs::metadata(path)?)?;
    let file = without_waiting(OpenOptions::new().read(true)).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Whether `metadata` is of a regular file.
///
/// # Errors
/// `InvalidInput` that says what it is instead.
pub fn regular(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let found = if metadata.is_dir() { "it is a folder" } else { "it is a pipe or a device" };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("{found}, not a regular file")))
}

/// All bytes of a regular file.
///
/// # Errors
/// Those of [`open`]; `FileTooLarge` for more than `limit` bytes, without having read more.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let known = file.metadata()?.len();
    if known > limit {
        return Err(too_large(limit));
    }
    let mut bytes = Vec::with_capacity(known as usize);
    // A file can grow while it is read.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large(limit)) } else { Ok(bytes) }
}

/// A file of at most `limit` bytes, as text.
///
/// # Errors
/// Those of [`read`]; `InvalidData` for what is not UTF-8.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    let bytes = read(path, limit)?;
    let not_text = |error: std::string::FromUtf8Error| {
        let message = format!("it is not UTF-8 after {} bytes", error.utf8_error().valid_up_to());
        io::Error::new(ErrorKind::InvalidData, message)
    };
    String::from_utf8(bytes).map_err(not_text)
}

fn too_large(limit: u64) -> io::Error {
    let message = format!("it has more than {limit} bytes, the most that is read of such a file");
    io::Error::new(ErrorKind::FileTooLarge, message)
}

/// Opens a regular file to write at its end, creating it if need be. A link is not followed.
///
/// # Errors
/// What the system says; `InvalidInput` for a link or anything else that is not a regular file.
pub fn append(path: &Path) -> io::Result<File> {
    ours(path, OpenOptions::new().create(true).read(true).append(true))
}

/// Opens a regular file for a lock on it, creating it if need be; what it holds stays. A link is not followed.
///
/// # Errors
/// Those of [`append`].
pub fn lock(path: &Path) -> io::Result<File> {
    ours(path, OpenOptions::new().create(true).truncate(false).read(true).write(true))
}

fn ours(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = without_links(without_waiting(options)).open(path).map_err(|error| {
        let link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        if !link {
            return error;
        }
        let message = "it is a link, and links are not followed where files are written";
        io::Error::new(ErrorKind::InvalidInput, message)
    })?;
    regular(&file.metadata()?)?;
    Ok(file)
}

#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_NONBLOCK)
}

/// Replaces the flags that [`without_waiting`] set by those and one more.
#[cfg(unix)]
fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
}

#[cfg(not(unix))]
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(not(unix))]
fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "twelve bytes").unwrap();
        assert_eq!(read_to_string(&path, 12).unwrap(), "twelve bytes");
        assert_eq!(read(&path, 11).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[cfg(unix)]
    #[test]
    fn fifos_devices_and_folders_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a zero byte and lives on.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [&fifo, Path::new("/dev/zero"), folder.path()] {
            let error = open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
        append(&fifo).unwrap_err();
        assert_eq!(lock(&fifo).unwrap_err().kind(), ErrorKind::InvalidInput);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert_eq!(open(&link).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed_where_we_write() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, link) = (folder.path().join("victim"), folder.path().join("run.lock"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(lock(&link).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(append(&link).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
