//! Which files a run reads, in which order, and what is in them: text, piece by piece.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{DataError, Records, parquet};

/// What files of text end in; a file that is named itself may end in anything.
const TEXT: [&str; 8] = ["txt", "md", "rs", "py", "cu", "cuh", "yaml", "toml"];

/// What files of lines end in, and of rows that are read as such.
const LINES: [&str; 2] = ["jsonl", parquet::ENDING];

/// A file that marks a folder of things that can be made again (bford.info/cachedir).
const CACHE_MARK: &str = "CACHEDIR.TAG";

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// The longest line of a jsonl file, in bytes.
const LONGEST_LINE: usize = 1 << 28;

/// The files of `inputs`: files as they are, folders walked in name order. Hidden entries, links to
/// folders and folders marked as caches are passed over.
pub(crate) fn list(inputs: &[PathBuf], records: Records) -> Result<Vec<PathBuf>, DataError> {
    let endings: &[&str] = if records == Records::Text { &TEXT } else { &LINES };
    let mut files = Vec::new();
    for input in inputs {
        let kind = input.metadata().map_err(|source| read_error(input, source))?;
        if kind.is_file() {
            files.push(input.clone());
        } else if kind.is_dir() {
            let before = files.len();
            walk(input, endings, &mut files)?;
            if files.len() == before {
                let endings = format!("`.{}`", endings.join("`, `."));
                return Err(DataError::NoFiles { path: input.clone(), endings });
            }
        } else {
            return Err(DataError::NotAFile { path: input.clone() });
        }
    }
    Ok(files)
}

fn walk(folder: &Path, endings: &[&str], files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let mut folders = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        if folder.join(CACHE_MARK).exists() {
            continue;
        }
        for entry in fs::read_dir(&folder).map_err(|source| read_error(&folder, source))? {
            let entry = entry.map_err(|source| read_error(&folder, source))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|source| read_error(&path, source))?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let ending = path.extension().and_then(|ending| ending.to_str());
            if kind.is_dir() {
                folders.push(path);
            } else if ending.is_some_and(|ending| endings.contains(&ending)) && path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    files.append(&mut found);
    Ok(())
}

/// Reads `path` block by block.
pub(crate) fn blocks(
    path: &Path,
    each: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut file = File::open(path).map_err(|source| read_error(path, source))?;
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(length) => each(&block[..length])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(read_error(path, source)),
        }
    }
}

/// Checks bytes that come in blocks to be UTF-8, whose characters may lie across two blocks.
#[derive(Debug)]
pub(crate) struct Utf8<'a> {
    path: &'a Path,
    /// The beginning of a character whose end has not come yet.
    torn: Vec<u8>,
    /// Bytes of the file before `torn`.
    done: u64,
}

impl Utf8<'_> {
    pub(crate) fn new(path: &Path) -> Utf8<'_> {
        Utf8 { path, torn: Vec::new(), done: 0 }
    }

    /// Hands the whole characters of `block` to `each`.
    pub(crate) fn push(
        &mut self,
        mut block: &[u8],
        each: &mut dyn FnMut(&str) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        while !self.torn.is_empty() && !block.is_empty() {
            self.torn.push(block[0]);
            block = &block[1..];
            match std::str::from_utf8(&self.torn) {
                Ok(character) => {
                    each(character)?;
                    self.done += self.torn.len() as u64;
                    self.torn.clear();
                }
                Err(error) if error.error_len().is_some() => return Err(self.error(0)),
                Err(_) => {}
            }
        }
        let valid = match std::str::from_utf8(block) {
            Ok(text) => text,
            Err(error) if error.error_len().is_some() => {
                return Err(self.error(error.valid_up_to()));
            }
            Err(error) => {
                self.torn = block[error.valid_up_to()..].to_vec();
                // Just found to be valid: `from_utf8` again costs a pass, and no `unsafe`.
                std::str::from_utf8(&block[..error.valid_up_to()]).unwrap_or_default()
            }
        };
        self.done += valid.len() as u64;
        if valid.is_empty() { Ok(()) } else { each(valid) }
    }

    /// After the last block: no character is torn.
    pub(crate) fn finish(&self) -> Result<(), DataError> {
        if self.torn.is_empty() { Ok(()) } else { Err(self.error(0)) }
    }

    fn error(&self, valid: usize) -> DataError {
        DataError::Utf8 { path: self.path.to_owned(), offset: self.done + valid as u64 }
    }
}

/// Joins text that comes in blocks to its lines; empty ones are passed over.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    path: &'a Path,
    /// The line that has begun.
    open: String,
    /// Its number, from 1.
    line: u64,
}

/// What takes lines, with their numbers from 1.
type Each<'a> = &'a mut dyn FnMut(u64, &str) -> Result<(), DataError>;

impl Lines<'_> {
    pub(crate) fn new(path: &Path) -> Lines<'_> {
        Lines { path, open: String::new(), line: 1 }
    }

    /// Hands the lines that end in `block` to `each`.
    pub(crate) fn push(&mut self, block: &str, each: Each<'_>) -> Result<(), DataError> {
        for part in block.split_inclusive('\n') {
            self.open.push_str(part);
            if self.open.len() > LONGEST_LINE {
                let message = format!("over {LONGEST_LINE} bytes long, the limit of a line");
                return Err(line_error(self.path, self.line, message));
            }
            if part.ends_with('\n') {
                self.finish(each)?;
                self.open.clear();
                self.line += 1;
            }
        }
        Ok(())
    }

    /// Hands the last line to `each`, where no line break ends it.
    pub(crate) fn finish(&self, each: Each<'_>) -> Result<(), DataError> {
        let line = self.open.trim_ascii_end();
        if line.trim_ascii().is_empty() { Ok(()) } else { each(self.line, line) }
    }
}

/// A line of a jsonl file; other fields are not read.
#[derive(serde::Deserialize)]
struct Line {
    text: String,
}

/// The text of a line; else what is wrong with it.
pub(crate) fn text_of(line: &str) -> Result<String, String> {
    object(line)?;
    let line: Line = serde_json::from_str(line).map_err(|error| described(&error))?;
    Ok(line.text)
}

/// A list would do for serde: its first element would be the first field.
pub(crate) fn object(line: &str) -> Result<(), String> {
    let object = line.trim_start().starts_with('{');
    if object { Ok(()) } else { Err("it is no object".to_owned()) }
}

/// What serde says, with the place in the line instead of the place in "the file".
pub(crate) fn described(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match message.strip_suffix(&place) {
        Some(message) => format!("{message} at column {}", error.column()),
        None => message,
    }
}

pub(crate) fn line_error(path: &Path, line: u64, message: String) -> DataError {
    DataError::Line { path: path.to_owned(), line, message, chat: false }
}

pub(crate) fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read { path: path.to_owned(), source }
}
