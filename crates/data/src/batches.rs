//! Ready-made batches: a safetensors file with `tokens` int64 [steps, batch, tokens + 1].

use std::path::Path;

use annulus_tensors::{Dtype, Entry, Problem, Room, TensorFile, TensorsError};

use crate::files::read_error;
use crate::{DataError, Sequence, Source};

/// Bytes of an id.
const WIDTH: usize = 8;

/// Ids that are read at a time, in bytes; short steps are hashed together, so many that they have as much.
const BLOCK: usize = 1 << 16;

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
    /// How many steps are hashed together.
    group: usize,
    /// Of the ids of each group of steps.
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
            group: BLOCK.div_ceil(batch.saturating_mul(length).saturating_mul(WIDTH)),
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
        for group in 0..self.steps.div_ceil(self.group) {
            let hash = self.read(group, &mut |bytes| {
                all.update(bytes);
                for id in numbers(bytes) {
                    largest = largest.max(self.id(index, id)?);
                    index += 1;
                }
                Ok(())
            })?;
            self.hashes.push(hash);
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

    /// Hands the bytes of a group of steps to `each`, and gives their hash.
    fn read(
        &self,
        group: usize,
        each: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<blake3::Hash, DataError> {
        let steps = group * self.group..self.steps.min((group + 1) * self.group);
        let bytes = (self.batch * self.length * WIDTH) as u64;
        let (mut at, end) = (steps.start as u64 * bytes, steps.end as u64 * bytes);
        let mut hasher = blake3::Hasher::new();
        let mut block = vec![0; BLOCK];
        while at < end {
            let bytes = &mut block[..BLOCK.min((end - at) as usize)];
            self.file.read_at(&self.ids, at, bytes).map_err(failed)?;
            hasher.update(bytes);
            each(bytes)?;
            at += bytes.len() as u64;
        }
        Ok(hasher.finalize())
    }
}

impl Source for Batches {
    fn batch(&self, step: u64) -> Result<Vec<Sequence>, DataError> {
        let batches = self.steps as u64;
        if step >= batches {
            return Err(DataError::End { step, batches });
        }
        let (group, within) = (step as usize / self.group, step as usize % self.group);
        let count = self.batch * self.length;
        let mut ids = Vec::with_capacity(count);
        let mut before = within * count;
        let hash = self.read(group, &mut |bytes| {
            let wanted = numbers(bytes).skip(before).take(count - ids.len());
            before = before.saturating_sub(bytes.len() / WIDTH);
            ids.extend(wanted.map(|id| id as u32));
            Ok(())
        })?;
        if hash != self.hashes[group] {
            return Err(DataError::Changed { path: self.file.path().to_owned() });
        }
        Ok(ids.chunks_exact(self.length).map(Sequence::shifted).collect())
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
    let Some(tensor) = tensors.get("tokens") else {
        let names: Vec<_> = tensors.keys().map(|name| format!("`{name}`")).collect();
        return Err(DataError::Batches {
            path,
            message: format!("found {}, wanted `tokens`", list(names)),
        });
    };
    match *tensor.shape {
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
