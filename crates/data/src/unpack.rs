//! Files that a program has packed: `.gz` and `.zst` are read as what is in them, a block at a time, however
//! much that is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::bufread::GzDecoder;
use zstd::stream::read::Decoder;

use crate::DataError;
use crate::files::{identity, open, read_error};

/// Bytes that are read, and unpacked, at a time.
const BLOCK: usize = 1 << 20;
/// What the library says of a window of more than 128 MiB, which it does not allocate unless it is told to.
const TOO_WIDE: &str = "requires too much memory";
/// What packed files end in.
const ENDINGS: [&str; 2] = ["gz", "zst"];

/// What packed a file, by its name.
fn packing(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?;
    ENDINGS.into_iter().find(|known| ending.eq_ignore_ascii_case(known))
}

/// The name of what is in a file: without the ending of what packed it.
pub(crate) fn unpacked_name(path: &Path) -> &Path {
    let stem = || path.file_stem().map(Path::new);
    packing(path).and_then(|_| stem()).unwrap_or(path)
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
    let end = identity(&file, path)?.size;
    let mut source = Source { file: &file, at: 0, end, raw };
    let is_packed = packing(path).is_some();
    pump(&mut *reader(&mut source, path)?, path, is_packed, each)?;
    // What follows the end of what was packed belongs to the file's hash.
    pump(&mut source, path, false, &mut |_| Ok(()))
}

/// The first bytes of what is in `path`, `most` of them where it has as many.
pub(crate) fn beginning(path: &Path, most: usize) -> Result<Vec<u8>, DataError> {
    let file = open(path)?;
    let end = identity(&file, path)?.size;
    let mut source = Source { file: &file, at: 0, end, raw: &mut |_| () };
    let mut first = Vec::new();
    let mut reader = reader(&mut source, path)?.take(most as u64);
    pump(&mut reader, path, packing(path).is_some(), &mut |block| {
        first.extend_from_slice(block);
        Ok(())
    })?;
    Ok(first)
}

/// What `source`, which is at `path`, says.
fn reader<'a>(source: &'a mut Source<'_>, path: &Path) -> Result<Box<dyn Read + 'a>, DataError> {
    Ok(match packing(path) {
        Some("gz") => Box::new(Members::new(source)),
        Some(_) => Box::new(Decoder::new(source).map_err(|error| read_error(path, error))?),
        None => Box::new(source),
    })
}

/// The members of a gzip file, one after the other. Zeros behind the last are no part of it, as `gzip -dc` has it: tapes and blocks of a
/// fixed size are filled up with them.
struct Members<R> {
    /// None: there is nothing more.
    open: Option<GzDecoder<BufReader<R>>>,
}

impl<R: Read> Members<R> {
    fn new(source: R) -> Members<R> {
        Members { open: Some(GzDecoder::new(BufReader::new(source))) }
    }
}

impl<R: Read> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.open {
            let length = member.read(into)?;
            if length > 0 || into.is_empty() {
                return Ok(length);
            }
            let Some(member) = self.open.take() else { break };
            let mut rest = member.into_inner();
            match rest.fill_buf()?.first() {
                None => {}
                Some(0) => zeros(rest)?,
                Some(_) => self.open = Some(GzDecoder::new(rest)),
            }
        }
        Ok(0)
    }
}

/// Reads to the end, where nothing but zeros is left.
fn zeros(mut rest: impl BufRead) -> io::Result<()> {
    loop {
        let block = rest.fill_buf()?;
        let length = block.len();
        if block.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "zeros, and more behind them"));
        }
        if length == 0 {
            return Ok(());
        }
        rest.consume(length);
    }
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

/// Hands what `from` reads to `each`, block by block.
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
                let (path, message) = (path.to_owned(), error.to_string());
                // The window is allocated as its header says, which anybody may have written.
                let is_wide = message.contains(TOO_WIDE);
                return Err(if is_wide {
                    DataError::Window { path }
                } else {
                    DataError::Packed { path, message }
                });
            }
            // It was longer when it was opened.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(DataError::Changed { path: path.to_owned() });
            }
            Err(error) => return Err(read_error(path, error)),
        }
    }
}
