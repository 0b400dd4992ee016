//! Texts of which a cache is made, and how far that is.

use std::fmt;
use std::path::PathBuf;

use crate::{Excluded, Tokenizer};

/// The records that files consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// One text: a document.
    Text,
    /// Lines of JSON, or rows of parquet files; a field of each is a document.
    Lines,
    /// Rows of parquet files; the text of a column is a document.
    Rows,
    /// Lines of JSON, or rows of parquet files; each is a conversation, as `messages` or in another program's fields, of which what the
    /// assistant says is learned, but for messages that say otherwise.
    Chats,
}

/// The field of a line that is its text, where nothing else is said.
pub const COLUMN: &str = "text";

/// Texts, and how they are read and tokenised.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// Files as they are, folders walked in name order.
    pub inputs: &'a [PathBuf],
    /// The records that the files consist of.
    pub records: Records,
    /// The field or column of lines and rows that is the text.
    pub column: &'a str,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Files in those folders that are not texts.
    pub excluded: &'a Excluded,
}

impl<'a> Texts<'a> {
    /// Texts of which nothing is excluded but what always is.
    pub fn new(inputs: &'a [PathBuf], records: Records, tokenizer: &'a Tokenizer) -> Texts<'a> {
        Texts { inputs, records, column: COLUMN, tokenizer, excluded: Excluded::NOTHING }
    }

    /// What the key of their cache has besides where so many files may be several documents with a token between them: in older
    /// caches that token begins the next document, and does not end the one before.
    pub(crate) fn joint(&self, files: usize) -> &'static [u8] {
        let is_one = self.records == Records::Text && files == 1;
        if is_one || self.tokenizer.between().is_empty() { b"" } else { b"ends between documents" }
    }
}

/// The progress of opening a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This process builds it.
    Reading {
        /// Bytes that are tokenised.
        done: u64,
        /// Bytes of all texts.
        total: u64,
    },
    /// Another process builds it.
    Waiting {
        /// The number of that process, if it is known.
        process: Option<u32>,
    },
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Reading { done, total } => write!(f, "{done} of {total} bytes read"),
            Progress::Waiting { process: Some(process) } => {
                write!(f, "waiting for process {process}, which tokenises the same texts")
            }
            Progress::Waiting { process: None } => {
                f.write_str("waiting for another process, which tokenises the same texts")
            }
        }
    }
}
