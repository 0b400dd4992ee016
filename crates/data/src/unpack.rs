//! Files that a program has packed: `.gz` and `.zst` are read as what is in them, a block at a time, however
//! much that is.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use zstd::stream::read::Decoder;

use crate::DataError;
use crate::files::{identity, open, read_error};

/// Bytes that are read, and unpacked, at a time.
const BLOCK: usize = 1 << 20;
/// What packed files end in.
const ENDINGS: [&str; 2] = ["gz", "zst"];

/// The name of what is in a file: without the ending of what packed it.
pub(crate) fn unpacked_name(path: &Path) -> &Path {
    let is_packed =
        path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known));
    let stem = || path.file_stem().map(Path::new);
    if is_packed { stem().unwrap_or(path) } else { path }
}

/// Reads `path` to its end: its own bytes go to `raw`, block by block, and what they say to `each`.
///
/// # Errors
/// A file that cannot be read, or is not packed as its name says, and what the two say.
pub(crate) fn unpacked(
    path: &Path,
    raw: &mut dyn FnMut(&[u8]),
    each: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = open(path)?;
    let left = identity(&file, path)?.size;
    let mut source = Source { file: &file, at: 0, end: left, raw };
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match ending {
        "gz" => pump(&mut MultiGzDecoder::new(&mut source), path, true, each)?,
        "zst" => {
            let decoder = Decoder::new(&mut source).map_err(|error| read_error(path, error))?;
            pump(&mut { decoder }, path, true, each)?;
        }
        _ => return pump(&mut source, path, false, each),
    }
    // What follows the end of what was packed belongs to the file's hash.
    pump(&mut source, path, false, &mut |_| Ok(()))
}

/// A file as long as it was when it was opened, whose bytes are shown as they are read.
struct Source<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    raw: &'a mut dyn FnMut(&[u8]),
}

impl Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min((self.end - self.at).try_into().unwrap_or(usize::MAX));
        let into = &mut into[..length];
        self.file.read_exact_at(into, self.at)?;
        self.at += length as u64;
        if length > 0 {
            (self.raw)(into);
        }
        Ok(length)
    }
}

fn pump(
    from: &mut dyn Read,
    path: &Path,
    packed: bool,
    each: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(length) => each(&block[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if packed => {
                let message = error.to_string();
                return Err(DataError::Packed { path: path.to_owned(), message });
            }
            // It was longer when it was opened.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(DataError::Changed { path: path.to_owned() });
            }
            Err(error) => return Err(read_error(path, error)),
        }
    }
}
