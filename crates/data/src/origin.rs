//! Where a sequence comes from: its documents, and the files and lines that these are in.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::files::{Lines, MARK, Utf8, line_error, text_of};
use crate::list::list;
use crate::parquet::{Row, is_of_rows, rows};
use crate::unpack::{beginning, unpacked};
use crate::{DataError, Records, Texts};

/// A document in a sequence, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extract {
    /// The document's number in its source, from 0.
    pub document: u64,
    /// The place of the first input in the document, in tokens.
    pub first: u64,
    /// The number of inputs.
    pub inputs: usize,
}

/// What a sequence was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The number of the source in a mixture, from 0.
    pub source: usize,
    /// The documents, in order; padding may follow.
    pub extracts: Vec<Extract>,
}

/// What is in the tokens of `range`, where documents begin at `starts`.
pub(crate) fn extracts(starts: &[u64], range: Range<u64>) -> Vec<Extract> {
    let mut document = starts.partition_point(|start| *start <= range.start).saturating_sub(1);
    let (mut at, mut found) = (range.start, Vec::new());
    while at < range.end {
        let end = starts.get(document + 1).map_or(range.end, |next| range.end.min(*next));
        let (first, inputs) = (at - starts.get(document).copied().unwrap_or_default(), end - at);
        found.push(Extract { document: document as u64, first, inputs: inputs as usize });
        (at, document) = (end, document + 1);
    }
    found
}

/// The file that a document is in, or is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line or row, from 1, of a file of several documents.
    pub line: Option<u64>,
}

/// Where some documents of `texts` are, by their numbers from 0. Files are read again, up to the one with the last of them.
///
/// # Errors
/// Files that cannot be read any more, or are not any more what a cache was made of.
pub fn places(
    texts: &Texts<'_>,
    documents: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, Place>, DataError> {
    let mut finder = Finder { texts, documents, next: 0, found: BTreeMap::new() };
    for file in list(texts.inputs, texts.records, texts.excluded)?.files {
        if finder.is_done() {
            break;
        }
        finder.file(&file)?;
    }
    Ok(finder.found)
}

impl DataError {
    /// Names the file and the line of a document that is too long, which are looked for in its `texts`; other errors stay as they are.
    #[must_use]
    pub fn located(self, texts: &Texts<'_>) -> DataError {
        let (path, error) = match self {
            DataError::In { path, source } if matches!(*source, DataError::TooLong { .. }) => {
                (path, *source)
            }
            other => return other,
        };
        let DataError::TooLong { document, place: None, found, wanted, key } = error else {
            return error;
        };
        let number = document as u64 - 1;
        match places(texts, &BTreeSet::from([number])).map(|mut all| all.remove(&number)) {
            Ok(place @ Some(_)) => DataError::TooLong { document, place, found, wanted, key },
            Ok(None) => DataError::Changed { path },
            Err(error) => error,
        }
    }
}

struct Finder<'a> {
    texts: &'a Texts<'a>,
    documents: &'a BTreeSet<u64>,
    /// The number of the next document.
    next: u64,
    found: BTreeMap<u64, Place>,
}

impl Finder<'_> {
    fn is_done(&self) -> bool {
        self.found.len() == self.documents.len()
    }

    fn file(&mut self, file: &Path) -> Result<(), DataError> {
        let Texts { records, column, .. } = *self.texts;
        if records == Records::Text {
            // An empty one is no document.
            let mut mark = [0; MARK.len_utf8()];
            let mark = MARK.encode_utf8(&mut mark).as_bytes();
            let first = beginning(file, mark.len() + 1)?;
            if !first.strip_prefix(mark).unwrap_or(&first).is_empty() {
                self.document(file, None);
            }
            return Ok(());
        }
        if is_of_rows(records, file) {
            return rows(file, records, column, &mut |number, row| {
                let is_document = match row {
                    Row::Text(text) => self.has_tokens(text)?,
                    Row::Record(_) => true,
                };
                if is_document {
                    self.document(file, Some(number));
                }
                Ok(())
            });
        }
        let (mut utf8, mut lines) = (Utf8::new(file), Lines::new(file));
        let mut of_line = |number, line: &str| self.line(file, number, line);
        unpacked(file, &mut |_| (), &mut |block| {
            utf8.push(block, &mut |text| lines.push(text, &mut of_line))
        })?;
        utf8.finish()?;
        lines.finish(&mut of_line)
    }

    fn line(&mut self, file: &Path, number: u64, line: &str) -> Result<(), DataError> {
        if self.is_done() {
            return Ok(());
        }
        let is_document = self.texts.records == Records::Chats || {
            let text = text_of(line, self.texts.column);
            self.has_tokens(&text.map_err(|message| line_error(file, number, message))?)?
        };
        if is_document {
            self.document(file, Some(number));
        }
        Ok(())
    }

    fn document(&mut self, file: &Path, line: Option<u64>) {
        if self.documents.contains(&self.next) {
            self.found.insert(self.next, Place { file: file.to_owned(), line });
        }
        self.next += 1;
    }

    /// Whether a text is a document; only of one without a letter there may be no token.
    fn has_tokens(&self, text: &str) -> Result<bool, DataError> {
        if text.chars().any(char::is_alphanumeric) {
            return Ok(true);
        }
        let mut found = false;
        self.texts.tokenizer.encode(text, &mut |ids| found |= !ids.is_empty())?;
        Ok(found)
    }
}
