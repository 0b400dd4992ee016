//! Builds a cache: read, tokenise, write, all as streams.

use std::borrow::Cow;
use std::path::Path;

use crate::cache::{Input, Maker};
use crate::encode::{Encoder, in_threads};
use crate::files::{Lines, Utf8, text_of};
use crate::ids::{Ids, Out};
use crate::parquet::{Row, is_of_rows, rows};
use crate::unpack::unpacked;
use crate::{DataError, Progress, Records, Rendered};

/// Bytes of lines that are encoded together.
const TOGETHER: usize = 1 << 22;

/// What a line that waits takes besides its text, in bytes.
const OVERHEAD: usize = 64;

/// Writes the cache of `inputs` to a file, which has the name `path` in errors.
pub(crate) fn build(
    inputs: &[Input],
    maker: &Maker<'_>,
    path: &Path,
    file: &mut dyn Out,
    key: blake3::Hash,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), DataError> {
    let mut ids = Ids::begin_file(path, file, maker.tokenizer)?;
    let total = inputs.iter().map(|input| input.size).sum();
    let mut done = 0;
    for input in inputs {
        let mut hasher = blake3::Hasher::new();
        let mut utf8 = Utf8::new(&input.path);
        let mut documents = Documents::new(input, maker);
        let rows = is_of_rows(maker.records, &input.path);
        let mut raw = |block: &[u8]| {
            hasher.update(block);
            done += block.len() as u64;
            progress(Progress::Reading { done, total });
        };
        unpacked(&input.path, &mut raw, &mut |block| {
            if rows {
                return Ok(());
            }
            let mut push = |text: &str| documents.push(text, &mut ids);
            utf8.push(block, &mut push).map_err(|error| error.in_file(&input.path))
        })?;
        if hasher.finalize() != input.hash {
            return Err(DataError::Changed { path: input.path.clone() });
        }
        utf8.finish()?;
        if rows {
            documents.rows(input, maker.records, &mut ids)?;
        }
        documents.finish(&mut ids).map_err(|error| error.in_file(&input.path))?;
    }
    ids.finish(key)
}

/// How a file is made into documents.
enum Documents<'a> {
    /// The file is one.
    Whole { encoder: Encoder<'a>, begun: bool },
    /// Every line is one.
    Lines { lines: Lines<'a>, waiting: Waiting<'a> },
}

impl<'a> Documents<'a> {
    fn new(input: &'a Input, maker: &'a Maker<'a>) -> Documents<'a> {
        if maker.records == Records::Text {
            return Documents::Whole { encoder: Encoder::new(maker.tokenizer), begun: false };
        }
        let waiting = Waiting { path: &input.path, maker, lines: Vec::new(), bytes: 0 };
        Documents::Lines { lines: Lines::new(&input.path), waiting }
    }

    fn push(&mut self, text: &str, ids: &mut Ids<'_>) -> Result<(), DataError> {
        match self {
            Documents::Whole { encoder, begun } => {
                if !*begun {
                    ids.begin()?;
                    *begun = true;
                }
                encoder.push(text, &mut |tokens| ids.push(tokens))
            }
            Documents::Lines { lines, waiting } => {
                lines.push(text, &mut |number, line| waiting.line(number, line, ids))
            }
        }
    }

    /// What `push` is for a file of columns, whose rows do not come one after the other.
    fn rows(
        &mut self,
        input: &Input,
        records: Records,
        ids: &mut Ids<'_>,
    ) -> Result<(), DataError> {
        let Documents::Lines { waiting, .. } = self else { return Ok(()) };
        rows(&input.path, records, waiting.maker.column, &mut |number, row| {
            let pushed = match row {
                Row::Text(text) => waiting.text(number, text.into(), ids),
                Row::Record(line) => waiting.push(number, line.to_owned(), ids),
            };
            pushed.map_err(|error| error.in_file(&input.path))
        })
    }

    fn finish(self, ids: &mut Ids<'_>) -> Result<(), DataError> {
        match self {
            Documents::Whole { begun: false, .. } => Ok(()),
            Documents::Whole { mut encoder, .. } => {
                encoder.finish(&mut |tokens| ids.push(tokens))?;
                ids.end()
            }
            Documents::Lines { lines, mut waiting } => {
                lines.finish(&mut |number, line| waiting.line(number, line, ids))?;
                waiting.flush(ids)
            }
        }
    }
}

/// Lines that wait to be encoded together.
struct Waiting<'a> {
    path: &'a Path,
    maker: &'a Maker<'a>,
    /// Texts, or records of conversations, with their numbers.
    lines: Vec<(u64, String)>,
    bytes: usize,
}

impl Waiting<'_> {
    fn line(&mut self, number: u64, line: &str, ids: &mut Ids<'_>) -> Result<(), DataError> {
        if self.maker.chat.is_some() {
            return self.push(number, line.to_owned(), ids);
        }
        let text =
            text_of(line, self.maker.column).map_err(|message| self.wrong(number, message))?;
        self.text(number, text, ids)
    }

    /// A long text is encoded as it comes: its tokens are never together in memory.
    fn text(
        &mut self,
        number: u64,
        text: Cow<'_, str>,
        ids: &mut Ids<'_>,
    ) -> Result<(), DataError> {
        if text.len() < TOGETHER {
            return self.push(number, text.into_owned(), ids);
        }
        self.flush(ids)?;
        ids.begin()?;
        let mut encoder = Encoder::new(self.maker.tokenizer);
        encoder.push(&text, &mut |tokens| ids.push(tokens))?;
        encoder.finish(&mut |tokens| ids.push(tokens))?;
        ids.end()
    }

    fn push(&mut self, number: u64, line: String, ids: &mut Ids<'_>) -> Result<(), DataError> {
        self.bytes += line.len() + OVERHEAD;
        self.lines.push((number, line));
        if self.bytes < TOGETHER { Ok(()) } else { self.flush(ids) }
    }

    /// A document from each line; none from an empty text.
    fn flush(&mut self, ids: &mut Ids<'_>) -> Result<(), DataError> {
        let lines = std::mem::take(&mut self.lines);
        self.bytes = 0;
        for document in in_threads(&lines, |(number, line)| self.document(*number, line))? {
            match document {
                Document::Text(tokens) if tokens.is_empty() => {}
                Document::Text(tokens) => {
                    ids.begin()?;
                    ids.push(&tokens)?;
                    ids.end()?;
                }
                Document::Chat(tokens) => ids.conversation(&tokens)?,
            }
        }
        Ok(())
    }

    fn document(&self, number: u64, line: &str) -> Result<Document, DataError> {
        let wrong = |message| self.wrong(number, message);
        let tokenizer = self.maker.tokenizer;
        if let Some(chat) = self.maker.chat {
            let Rendered { text, learned } = chat.render(line).map_err(wrong)?;
            let tokens = tokenizer.encode_marked(&text, &learned).map_err(wrong)?;
            if !tokens.iter().any(|(_, learned)| *learned) {
                return Err(wrong("the messages of the assistant have no tokens".to_owned()));
            }
            return Ok(Document::Chat(tokens));
        }
        let mut ids = Vec::new();
        tokenizer.encode(line, &mut |part| ids.extend_from_slice(part))?;
        Ok(Document::Text(ids))
    }

    fn wrong(&self, line: u64, message: String) -> DataError {
        let chat = self.maker.chat.is_some();
        DataError::Line { path: self.path.to_owned(), line, message, chat }
    }
}

/// A line's tokens.
enum Document {
    Text(Vec<u32>),
    /// Each with whether it is learned.
    Chat(Vec<(u32, bool)>),
}
