//! Builds a cache: read, tokenise, write, all as streams; then sync and rename.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use crate::cache::{Input, Maker};
use crate::encode::{Encoder, in_threads};
use crate::files::{Lines, Utf8, blocks, text_of};
use crate::header::{HEADER, Header};
use crate::parquet::{is_parquet, rows};
use crate::{DataError, Records, Rendered, Tokenizer};

/// Bytes of lines that are encoded together.
const TOGETHER: usize = 1 << 22;

/// Bytes gathered before they are written.
const BUFFER: usize = 1 << 20;

/// Builds the cache `path` of `inputs`. Whoever calls holds the lock of `path`: nobody else builds it.
pub(crate) fn build(
    inputs: &[Input],
    maker: &Maker<'_>,
    path: &Path,
    key: blake3::Hash,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), DataError> {
    // What a crash leaves behind has the same name and is overwritten.
    let partial = path.with_extension("partial");
    let mut ids = Ids::create(partial.clone(), maker.tokenizer)?;
    let total = inputs.iter().map(|input| input.size).sum();
    let mut done = 0;
    for input in inputs {
        let mut hasher = blake3::Hasher::new();
        let mut size = 0;
        let mut utf8 = Utf8::new(&input.path);
        let mut texts = Texts::new(input, maker);
        let rows = maker.records != Records::Text && is_parquet(&input.path);
        blocks(&input.path, &mut |block| {
            hasher.update(block);
            size += block.len() as u64;
            if size > input.size {
                return Err(DataError::Changed { path: input.path.clone() });
            }
            if !rows {
                let mut push = |text: &str| texts.push(text, &mut ids);
                utf8.push(block, &mut push).map_err(|error| error.in_file(&input.path))?;
            }
            done += block.len() as u64;
            progress(done, total);
            Ok(())
        })?;
        if hasher.finalize() != input.hash {
            return Err(DataError::Changed { path: input.path.clone() });
        }
        utf8.finish()?;
        if rows {
            texts.rows(input, maker.records, &mut ids)?;
        }
        texts.finish(&mut ids).map_err(|error| error.in_file(&input.path))?;
    }
    ids.finish(key)?;
    let write = |source| DataError::Write { path: path.to_owned(), source };
    fs::rename(&partial, path).map_err(write)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(write)
}

/// How a file is made into documents.
enum Texts<'a> {
    /// The file is one.
    Whole { encoder: Encoder<'a>, begun: bool },
    /// Every line is one.
    Lines { lines: Lines<'a>, waiting: Waiting<'a> },
}

impl<'a> Texts<'a> {
    fn new(input: &'a Input, maker: &'a Maker<'a>) -> Texts<'a> {
        if maker.records == Records::Text {
            return Texts::Whole { encoder: Encoder::new(maker.tokenizer), begun: false };
        }
        let waiting = Waiting { path: &input.path, maker, lines: Vec::new(), bytes: 0 };
        Texts::Lines { lines: Lines::new(&input.path), waiting }
    }

    fn push(&mut self, text: &str, ids: &mut Ids<'_>) -> Result<(), DataError> {
        match self {
            Texts::Whole { encoder, begun } => {
                if !*begun {
                    ids.begin()?;
                    *begun = true;
                }
                encoder.push(text, &mut |tokens| ids.push(tokens))
            }
            Texts::Lines { lines, waiting } => {
                lines.push(text, &mut |number, line| waiting.push(number, line, ids))
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
        match self {
            Texts::Whole { .. } => Ok(()),
            Texts::Lines { waiting, .. } => {
                rows(&input.path, records, &mut |number, row| waiting.push(number, row, ids))
            }
        }
    }

    fn finish(self, ids: &mut Ids<'_>) -> Result<(), DataError> {
        match self {
            Texts::Whole { begun: false, .. } => Ok(()),
            Texts::Whole { mut encoder, .. } => {
                encoder.finish(&mut |tokens| ids.push(tokens))?;
                ids.end()
            }
            Texts::Lines { lines, mut waiting } => {
                lines.finish(&mut |number, line| waiting.push(number, line, ids))?;
                waiting.flush(ids)
            }
        }
    }
}

/// Lines that wait to be encoded together.
struct Waiting<'a> {
    path: &'a Path,
    maker: &'a Maker<'a>,
    /// With their numbers.
    lines: Vec<(u64, String)>,
    bytes: usize,
}

impl Waiting<'_> {
    fn push(&mut self, number: u64, line: &str, ids: &mut Ids<'_>) -> Result<(), DataError> {
        self.bytes += line.len();
        self.lines.push((number, line.to_owned()));
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
        let chat = self.maker.chat.is_some();
        let path = self.path;
        let wrong =
            |message| DataError::Line { path: path.to_owned(), line: number, message, chat };
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
        let text = text_of(line).map_err(wrong)?;
        tokenizer.encode(&text, &mut |part| ids.extend_from_slice(part))?;
        Ok(Document::Text(ids))
    }
}

/// A line's tokens.
enum Document {
    Text(Vec<u32>),
    /// Each with whether it is learned.
    Chat(Vec<(u32, bool)>),
}

/// The file of ids under construction.
struct Ids<'a> {
    path: PathBuf,
    file: BufWriter<File>,
    tokenizer: &'a Tokenizer,
    hasher: blake3::Hasher,
    bytes: Vec<u8>,
    width: usize,
    tokens: u64,
    largest: Option<u32>,
    documents: Vec<u64>,
    /// Where what is learned begins and ends, in turn.
    learned: Vec<u64>,
}

impl<'a> Ids<'a> {
    fn create(path: PathBuf, tokenizer: &'a Tokenizer) -> Result<Ids<'a>, DataError> {
        let create = || {
            let mut file = BufWriter::with_capacity(BUFFER, File::create(&path)?);
            file.write_all(&[0; HEADER])?;
            Ok(file)
        };
        let file = create().map_err(|source| DataError::Write { path: path.clone(), source })?;
        let width = if tokenizer.vocabulary() <= 1 << 16 { 2 } else { 4 };
        let hasher = blake3::Hasher::new();
        let (bytes, documents, learned) = (Vec::new(), Vec::new(), Vec::new());
        let (tokens, largest) = (0, None);
        Ok(Ids { path, file, tokenizer, hasher, bytes, width, tokens, largest, documents, learned })
    }

    /// A document as it is, with nothing before or after it: the template has said all.
    fn conversation(&mut self, tokens: &[(u32, bool)]) -> Result<(), DataError> {
        let start = self.tokens;
        self.documents.push(start);
        let ids: Vec<u32> = tokens.iter().map(|(id, _)| *id).collect();
        self.push(&ids)?;
        let mut before = false;
        for (at, &(_, learned)) in (start..).zip(tokens) {
            if learned != std::mem::replace(&mut before, learned) {
                self.learned.push(at);
            }
        }
        self.learned.extend(before.then_some(self.tokens));
        Ok(())
    }

    fn begin(&mut self) -> Result<(), DataError> {
        let first = self.documents.is_empty();
        self.documents.push(self.tokens);
        self.push(self.tokenizer.before(first))
    }

    fn end(&mut self) -> Result<(), DataError> {
        self.push(self.tokenizer.after())
    }

    fn push(&mut self, ids: &[u32]) -> Result<(), DataError> {
        self.tokens += ids.len() as u64;
        self.largest = self.largest.max(ids.iter().max().copied());
        self.bytes.resize(ids.len() * self.width, 0);
        if self.width == 2 {
            let (places, _) = self.bytes.as_chunks_mut::<2>();
            places.iter_mut().zip(ids).for_each(|(place, &id)| *place = (id as u16).to_le_bytes());
        } else {
            let (places, _) = self.bytes.as_chunks_mut::<4>();
            places.iter_mut().zip(ids).for_each(|(place, &id)| *place = id.to_le_bytes());
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), DataError> {
        self.hasher.update(&self.bytes);
        let written = self.file.write_all(&self.bytes);
        written.map_err(|source| DataError::Write { path: self.path.clone(), source })
    }

    fn finish(mut self, key: blake3::Hash) -> Result<(), DataError> {
        let odd = self.tokens as usize * self.width;
        self.bytes = vec![0; odd.next_multiple_of(8) - odd];
        let numbers = self.documents.iter().chain(&self.learned);
        self.bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
        self.write()?;
        let header = Header {
            width: self.width as u32,
            tokens: self.tokens,
            documents: self.documents.len() as u64,
            learned: self.learned.len() as u64 / 2,
            vocabulary: self.largest.map_or(0, |largest| u64::from(largest) + 1),
            content: self.hasher.finalize(),
            key,
        };
        let mut end = || {
            self.file.rewind()?;
            self.file.write_all(&header.write())?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        end().map_err(|source| DataError::Write { path: self.path.clone(), source })
    }
}
