//! Ready-made batches: a safetensors file with `tokens` int64 [steps, batch, tokens + 1].

use std::ops::Range;
use std::path::Path;

use annulus_machine::blocks::HASHED;
use annulus_sequence::Positions;
use annulus_tensors::{Dtype, Entry, Problem, Room, TensorFile, TensorsError};

use crate::files::read_error;
use crate::{DataError, Source, Tokens};

/// Bytes of an id.
const WIDTH: usize = 8;

/// The tensor that is read.
const TOKENS: &str = "tokens";

/// As many tensors as a file may hold; one is read.
const MOST: usize = 1 << 10;

/// Ready-made batches; step `t` takes row `t`. The file is read where it is needed, and never loaded whole; what is read is held to
/// what it was when the file was opened.
#[derive(Debug)]
pub struct Batches {
    file: TensorFile,
    ids: Entry,
    batch: usize,
    /// Ids of a sequence: inputs and one more.
    length: usize,
    vocabulary: usize,
    steps: usize,
    /// Of each block of the ids.
    hashes: Vec<blake3::Hash>,
    fingerprint: String,
}

impl Batches {
    /// Opens `path` and checks its shape against `batch` and `tokens`, and every id.
    ///
    /// # Errors
    /// When it is no such file, or holds what is no id.
    pub fn open(path: &Path, batch: usize, tokens: usize) -> Result<Batches, DataError> {
        for (what, found) in [("data.tokens", tokens), ("data.batch", batch)] {
            if found == 0 {
                return Err(DataError::TooFew { what, found, wanted: 1 });
            }
        }
        let file = TensorFile::open(path, path, &mut Room::of(MOST)).map_err(failed)?;
        let (ids, steps) = find(&file, batch, tokens)?;
        let length = tokens + 1;
        let mut batches = Batches {
            file,
            ids,
            batch,
            length,
            vocabulary: 0,
            steps,
            hashes: Vec::new(),
            fingerprint: String::new(),
        };
        batches.examine()?;
        Ok(batches)
    }

    /// Reads all ids once.
    fn examine(&mut self) -> Result<(), DataError> {
        let mut all = blake3::Hasher::new();
        let (mut index, mut largest) = (0, 0);
        let mut block = Vec::new();
        for number in 0..self.ids.length().div_ceil(HASHED as u64) as usize {
            self.hashes.push(self.fill(number, &mut block)?);
            all.update(&block);
            for id in numbers(&block) {
                largest = largest.max(self.id(index, id)?);
                index += 1;
            }
        }
        self.vocabulary = largest as usize + 1;
        self.fingerprint = all.finalize().to_hex().to_string();
        Ok(())
    }

    /// The `index`-th number of all, if it is an id.
    fn id(&self, index: usize, id: i64) -> Result<u32, DataError> {
        u32::try_from(id).map_err(|_| {
            let (column, row) = (index % self.length, index / self.length);
            let (step, row) = (row / self.batch, row % self.batch);
            DataError::Id { path: self.file.path().to_owned(), step, row, column, id }
        })
    }

    /// The bytes of a block, in `block`, and their hash.
    fn fill(&self, number: usize, block: &mut Vec<u8>) -> Result<blake3::Hash, DataError> {
        let at = number as u64 * HASHED as u64;
        let bytes = (self.ids.length() - at).min(HASHED as u64) as usize;
        block.resize(bytes, 0);
        self.file.read_at(&self.ids, at, block).map_err(failed)?;
        Ok(blake3::hash(block))
    }
}

/// Reads ids by their place in the file, a block at a time.
struct Reader<'a> {
    of: &'a Batches,
    /// The number of the block that is held, if one is.
    number: Option<usize>,
    bytes: Vec<u8>,
}

impl Reader<'_> {
    /// The id at `place`, which is one: it was looked at when the file was opened.
    fn id(&mut self, place: usize) -> Result<u32, DataError> {
        let (number, within) = (place / (HASHED / WIDTH), place % (HASHED / WIDTH));
        if self.number != Some(number) {
            self.number = None;
            if self.of.fill(number, &mut self.bytes)? != self.of.hashes[number] {
                return Err(DataError::Changed { path: self.of.file.path().to_owned() });
            }
            self.number = Some(number);
        }
        let (ids, _) = self.bytes.as_chunks::<WIDTH>();
        Ok(i64::from_le_bytes(ids[within]) as u32)
    }
}

impl Source for Batches {
    fn rows(&self) -> usize {
        self.batch
    }

    fn tokens(&self) -> usize {
        self.length - 1
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let batches = self.steps as u64;
        if step >= batches {
            return Err(DataError::End { step, batches });
        }
        let mut reader = Reader { of: self, number: None, bytes: Vec::new() };
        for row in rows {
            let first = (step as usize * self.batch + row) * self.length;
            for position in positions.iter() {
                into.inputs.push(reader.id(first + position)?);
                into.targets.push(i64::from(reader.id(first + position + 1)?));
            }
            into.documents.push(Vec::new());
        }
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        Some(self.steps as u64)
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}

/// `tokens` in the file, and how many steps it has.
fn find(file: &TensorFile, batch: usize, tokens: usize) -> Result<(Entry, usize), DataError> {
    let path = file.path().to_owned();
    let tensors = file.tensors();
    let failed = |message: String| DataError::Batches { path: path.clone(), message };
    let names = tensors.keys().filter(|name| *name != TOKENS).map(|name| format!("`{name}`"));
    let names: Vec<_> = names.collect();
    let Some(tensor) = tensors.get(TOKENS) else {
        return Err(failed(format!("found {}, expected `{TOKENS}`", list(names))));
    };
    if !names.is_empty() {
        let message = format!("nothing reads {}, which it has beside `{TOKENS}`", list(names));
        return Err(failed(message));
    }
    match *tensor.shape {
        [0, ..] => Err(failed(format!("`{TOKENS}` has 0 steps"))),
        [steps, rows, length]
            if tensor.dtype == Dtype::I64
                && rows == batch
                && Some(length) == tokens.checked_add(1) =>
        {
            Ok((tensor.clone(), steps))
        }
        _ => Err(DataError::Shape {
            path,
            found: format!("{:?} {:?}", tensor.dtype, tensor.shape),
            wanted: format!("I64 [any, {batch}, {}]", tokens.saturating_add(1)),
        }),
    }
}

fn failed(TensorsError { file: path, problem }: TensorsError) -> DataError {
    match problem {
        Problem::Read(source) => read_error(&path, source),
        // It was longer when it was opened.
        Problem::Shrunk => DataError::Changed { path },
        Problem::Irregular => DataError::NotAFile { path },
        _ => DataError::Batches { path, message: problem.to_string() },
    }
}

/// The first few names in a row, sorted.
fn list(mut names: Vec<String>) -> String {
    const SHOWN: usize = 8;
    names.sort();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    match (names.is_empty(), more) {
        (true, _) => "no tensor".to_owned(),
        (_, 0) => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    let (numbers, _) = bytes.as_chunks::<WIDTH>();
    numbers.iter().map(|bytes| i64::from_le_bytes(*bytes))
}
