//! Builds a cache: read, tokenise, write, all as streams; then sync and rename.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use crate::cache::Input;
use crate::encode::{Encoder, encode_texts};
use crate::files::{Lines, Utf8, blocks};
use crate::header::{HEADER, Header};
use crate::{DataError, Tokenizer};

/// Bytes of lines that are encoded together.
const TOGETHER: usize = 1 << 22;

/// Bytes gathered before they are written.
const BUFFER: usize = 1 << 20;

/// Builds the cache `path` of `inputs`. Whoever calls holds the lock of `path`: nobody else builds it.
pub(crate) fn build(
    inputs: &[Input],
    jsonl: bool,
    tokenizer: &Tokenizer,
    path: &Path,
    key: blake3::Hash,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), DataError> {
    // What a crash leaves behind has the same name and is overwritten.
    let partial = path.with_extension("partial");
    let mut ids = Ids::create(partial.clone(), tokenizer)?;
    let total = inputs.iter().map(|input| input.size).sum();
    let mut done = 0;
    for input in inputs {
        let mut hasher = blake3::Hasher::new();
        let mut size = 0;
        let mut utf8 = Utf8::new(&input.path);
        let mut texts = Texts::new(input, jsonl, tokenizer);
        blocks(&input.path, &mut |block| {
            hasher.update(block);
            size += block.len() as u64;
            if size > input.size {
                return Err(DataError::Changed { path: input.path.clone() });
            }
            let mut push = |text: &str| texts.push(text, &mut ids);
            utf8.push(block, &mut push).map_err(|error| error.in_file(&input.path))?;
            done += block.len() as u64;
            progress(done, total);
            Ok(())
        })?;
        if hasher.finalize() != input.hash {
            return Err(DataError::Changed { path: input.path.clone() });
        }
        utf8.finish()?;
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
    /// Every line is one. Those that wait are encoded together.
    Lines { lines: Lines<'a>, waiting: Vec<String>, bytes: usize },
}

impl<'a> Texts<'a> {
    fn new(input: &'a Input, jsonl: bool, tokenizer: &'a Tokenizer) -> Texts<'a> {
        if jsonl {
            Texts::Lines { lines: Lines::new(&input.path), waiting: Vec::new(), bytes: 0 }
        } else {
            Texts::Whole { encoder: Encoder::new(tokenizer), begun: false }
        }
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
            Texts::Lines { lines, waiting, bytes } => lines.push(text, &mut |line| {
                *bytes += line.len();
                waiting.push(line.to_owned());
                if *bytes < TOGETHER {
                    return Ok(());
                }
                *bytes = 0;
                ids.documents(&std::mem::take(waiting))
            }),
        }
    }

    fn finish(self, ids: &mut Ids<'_>) -> Result<(), DataError> {
        match self {
            Texts::Whole { begun: false, .. } => Ok(()),
            Texts::Whole { mut encoder, .. } => {
                encoder.finish(&mut |tokens| ids.push(tokens))?;
                ids.end()
            }
            Texts::Lines { lines, mut waiting, .. } => {
                lines.finish(&mut |line| {
                    waiting.push(line.to_owned());
                    Ok(())
                })?;
                ids.documents(&waiting)
            }
        }
    }
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
        let (bytes, documents) = (Vec::new(), Vec::new());
        let (tokens, largest) = (0, None);
        Ok(Ids { path, file, tokenizer, hasher, bytes, width, tokens, largest, documents })
    }

    /// A document from each text; none from an empty one.
    fn documents(&mut self, texts: &[String]) -> Result<(), DataError> {
        let encoded = encode_texts(texts, self.tokenizer)?;
        for (_, tokens) in texts.iter().zip(encoded).filter(|(text, _)| !text.is_empty()) {
            self.begin()?;
            self.push(&tokens)?;
            self.end()?;
        }
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
        self.bytes.extend(self.documents.iter().flat_map(|start| start.to_le_bytes()));
        self.write()?;
        let header = Header {
            width: self.width as u32,
            tokens: self.tokens,
            documents: self.documents.len() as u64,
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
