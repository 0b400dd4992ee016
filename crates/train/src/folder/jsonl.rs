//! Files with a JSON object per line, to which a run appends. The last line may be torn: it is being written, or its writer was killed.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::error::failure;
use crate::folder::write_atomically;
use crate::{Result, TrainError};

/// The largest JSON-lines file that is read, in bytes: some million lines.
const LARGEST: u64 = 1 << 32;

/// The content of a JSON-lines file; empty if there is no file yet.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    match annulus_files::read(path, LARGEST) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Opens a file to append to it after the lines that `kept` reads, which are returned; all others, and a torn one, are dropped.
pub(crate) fn resume<L>(
    path: &Path,
    kept: impl Fn(&str) -> Option<L>,
) -> io::Result<(File, Vec<L>)> {
    let text = text(path)?;
    let (mut left, mut lines) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(read) = kept(line) {
            left.extend([line, "\n"]);
            lines.push(read);
        }
    }
    if left != text {
        write_atomically(path, left.as_bytes())?;
    }
    Ok((annulus_files::append(path)?, lines))
}

/// All lines, each read by `parse`, and whether the last one is torn.
///
/// # Errors
/// A file that cannot be read, and a line before the last that `parse` refuses, by its number.
pub(crate) fn read<L>(
    path: &Path,
    parse: impl Fn(&str) -> std::result::Result<L, String>,
) -> Result<(Vec<L>, bool)> {
    let text = text(path).map_err(|error| failure("read", path, &error))?;
    let mut lines = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match parse(line) {
            Ok(line) => lines.push(line),
            Err(_) if !line.ends_with('\n') => return Ok((lines, true)),
            Err(why) => {
                let message = format!("`{}`, line {}: {why}", path.display(), index + 1);
                let hint =
                    "delete that line, or train the run on: what cannot be read is dropped then";
                return Err(TrainError::Unreadable { message, hint: hint.to_owned() });
            }
        }
    }
    Ok((lines, false))
}
