//! What is in files: bytes, block by block, and text, piece by piece.

use std::borrow::Cow;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use annulus_files::Identity;
use serde_json::{Map, Value as Json};

use crate::chat::CONVERSATION_FIELDS;
use crate::texts::COLUMN;
use crate::{BinaryKind, DataError};

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// The longest line of a jsonl file, and the longest text of a parquet file, in bytes.
pub(crate) const LONGEST: usize = 1 << 26;

/// What is said of a longer line.
pub(crate) const LIMIT_OF_LINE: &str = "the limit of a line";

/// What is said of a file that is a JSON array, as Alpaca's are.
pub(crate) const ARRAY: &str = "a JSON array of records, not a JSON object in each line";

/// Opens a regular file for reading.
pub(crate) fn open(path: &Path) -> Result<File, DataError> {
    annulus_files::open(path).map_err(|source| read_error(path, source))
}

/// What tells an open file, which is at `path`, from another.
pub(crate) fn identity(file: &File, path: &Path) -> Result<Identity, DataError> {
    Identity::of(file).map_err(|source| read_error(path, source))
}

/// Reads `places` of `file`, which is at `path`, block by block. What is not there any more is an error.
pub(crate) fn blocks_of(
    file: &File,
    path: &Path,
    places: Range<u64>,
    each: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut block = vec![0; BLOCK.min(places.end.saturating_sub(places.start) as usize)];
    let mut at = places.start;
    while at < places.end {
        let length = block.len().min((places.end - at) as usize);
        read_exact(file, path, &mut block[..length], at)?;
        each(&block[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// Fills `bytes` from byte `at` of `file`, which is at `path`.
pub(crate) fn read_exact(
    file: &File,
    path: &Path,
    bytes: &mut [u8],
    at: u64,
) -> Result<(), DataError> {
    file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        // It was longer when it was opened.
        ErrorKind::UnexpectedEof => DataError::Changed { path: path.to_owned() },
        _ => read_error(path, error),
    })
}

/// A byte-order mark: where a file begins with it, it says how the file is written, and is no part of its text.
pub(crate) const MARK: char = '\u{feff}';

/// Checks bytes that come in blocks to be UTF-8, whose characters may lie across two blocks. A [`MARK`] at the beginning is
/// passed over.
#[derive(Debug)]
pub(crate) struct Utf8<'a> {
    path: &'a Path,
    /// The beginning of a character whose end has not come yet.
    torn: Vec<u8>,
    /// Bytes of the file before `torn`.
    done: u64,
    /// What the file is by its first bytes, where that is no text.
    kind: Option<BinaryKind>,
}

impl Utf8<'_> {
    pub(crate) fn new(path: &Path) -> Utf8<'_> {
        Utf8 { path, torn: Vec::new(), done: 0, kind: None }
    }

    /// Hands the whole characters of `block` to `each`.
    pub(crate) fn push(
        &mut self,
        mut block: &[u8],
        each: &mut dyn FnMut(&str) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        if self.done == 0 && self.torn.is_empty() {
            self.kind = BinaryKind::of(block);
        }
        while !self.torn.is_empty() && !block.is_empty() {
            self.torn.push(block[0]);
            block = &block[1..];
            match std::str::from_utf8(&self.torn) {
                Ok(character) => {
                    hand(character, self.done, each)?;
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
        hand(valid, self.done, each)?;
        self.done += valid.len() as u64;
        Ok(())
    }

    /// After the last block: no character is torn.
    pub(crate) fn finish(&self) -> Result<(), DataError> {
        if self.torn.is_empty() { Ok(()) } else { Err(self.error(0)) }
    }

    fn error(&self, valid: usize) -> DataError {
        let (path, offset) = (self.path.to_owned(), self.done + valid as u64);
        DataError::Utf8 { path, offset, kind: self.kind }
    }
}

/// Hands on a text that stands behind so many bytes of its file.
fn hand(
    text: &str,
    before: u64,
    each: &mut dyn FnMut(&str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let text = if before == 0 { text.strip_prefix(MARK).unwrap_or(text) } else { text };
    if text.is_empty() { Ok(()) } else { each(text) }
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
            if self.open.len() + part.len() > LONGEST {
                self.refuse_array(&self.open)?;
                let message = format!("over {LONGEST} bytes long, {LIMIT_OF_LINE}");
                return Err(line_error(self.path, self.line, message));
            }
            self.open.push_str(part);
            if part.ends_with('\n') {
                self.finish(each)?;
                self.open.clear();
                self.open.shrink_to(BLOCK);
                self.line += 1;
            }
        }
        Ok(())
    }

    /// Hands the last line to `each`, where no line break ends it.
    pub(crate) fn finish(&self, each: Each<'_>) -> Result<(), DataError> {
        let line = self.open.trim_ascii_end();
        self.refuse_array(line)?;
        if line.trim_ascii().is_empty() { Ok(()) } else { each(self.line, line) }
    }

    /// An error where the first line begins an array of objects: then the file is one.
    fn refuse_array(&self, line: &str) -> Result<(), DataError> {
        let items = line.trim_ascii_start().strip_prefix('[').map(str::trim_ascii_start);
        let is_array = items.is_some_and(|items| items.is_empty() || items.starts_with('{'));
        if self.line == 1 && is_array {
            return Err(line_error(self.path, 1, ARRAY.to_owned()));
        }
        Ok(())
    }
}

/// A line of a jsonl file; other fields are not read.
#[derive(serde::Deserialize)]
struct Line<'a> {
    /// A part of the line, where nothing in it is escaped.
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// The text of a line, its field `column`; else what is wrong with it.
pub(crate) fn text_of<'a>(line: &'a str, column: &str) -> Result<Cow<'a, str>, String> {
    object(line)?;
    if column != COLUMN {
        let mut line: Map<String, Json> =
            serde_json::from_str(line).map_err(|error| described(&error))?;
        return match line.remove(column) {
            Some(Json::String(text)) => Ok(text.into()),
            Some(other) => Err(format!("`{column}` is {}, not a string", kind(&other))),
            None => Err(format!("missing field `{column}`{}", of_conversations(&line))),
        };
    }
    match serde_json::from_str::<Line<'_>>(line) {
        Ok(line) => Ok(line.text),
        Err(error) => Err(of_another_kind(line, &error).unwrap_or_else(|| described(&error))),
    }
}

/// What is said of a record that is no text but a conversation, before one of its fields.
pub(crate) const IS_CONVERSATION: &str = ", but it has ";

fn of_conversations(record: &Map<String, Json>) -> String {
    let field = CONVERSATION_FIELDS.iter().find(|field| record.contains_key(**field));
    field.map_or_else(String::new, |field| format!("{IS_CONVERSATION}`{field}`"))
}

/// What is wrong with a line whose text is no string, or that is a conversation; `None`: something else is wrong.
fn of_another_kind(line: &str, error: &serde_json::Error) -> Option<String> {
    if !error.is_data() {
        return None;
    }
    let found: Map<String, Json> = serde_json::from_str(line).ok()?;
    let Some(text) = found.get(COLUMN) else {
        let way_out = of_conversations(&found);
        return (!way_out.is_empty()).then(|| described(error) + &way_out);
    };
    (!text.is_string()).then(|| format!("`{COLUMN}` is {}, not a string", kind(text)))
}

/// A value that is no string, in a few words.
fn kind(value: &Json) -> String {
    match value {
        Json::Null => "`null`".to_owned(),
        Json::Bool(_) => format!("`{value}`"),
        Json::Number(number) => format!("the number {number}"),
        Json::String(_) => "a string".to_owned(),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
    }
}

/// A list would do for serde: its first element would be the first field.
pub(crate) fn object(line: &str) -> Result<(), String> {
    let object = line.trim_start().starts_with('{');
    if object { Ok(()) } else { Err("not a JSON object".to_owned()) }
}

/// What serde says, with the place in the line instead of the place in "the file".
pub(crate) fn described(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match message.strip_suffix(&place) {
        Some(message) if error.is_eof() => match message.strip_prefix("EOF while parsing ") {
            Some("a value") | None => "the line ends where a value is expected".to_owned(),
            Some(open) => format!("the line ends inside {open}"),
        },
        Some(message) => format!("{message} at column {}", error.column()),
        None => message,
    }
}

pub(crate) fn line_error(path: &Path, line: u64, message: String) -> DataError {
    DataError::Line { path: path.to_owned(), line, message, chat: false }
}

pub(crate) fn read_error(path: &Path, source: std::io::Error) -> DataError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::InvalidInput => DataError::NotAFile { path },
        _ => DataError::Read { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_passed_over_at_the_beginning_alone_however_it_is_torn() {
        let text = "\u{feff}a\u{feff}é";
        for length in 1..=text.len() {
            let (mut utf8, mut found) = (Utf8::new(Path::new("a.txt")), String::new());
            for block in text.as_bytes().chunks(length) {
                let mut each = |text: &str| {
                    found.push_str(text);
                    Ok(())
                };
                utf8.push(block, &mut each).unwrap();
            }
            utf8.finish().unwrap();
            assert_eq!(found, "a\u{feff}é", "blocks of {length}");
        }
    }
}
