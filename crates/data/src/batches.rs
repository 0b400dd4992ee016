//! Ready-made batches: a safetensors file with `tokens` int64 [steps, batch, tokens + 1].

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use crate::{DataError, Sequence, Source};

/// Bytes of an id.
const WIDTH: usize = 8;

/// Ready-made batches; step `t` takes row `t`. The file is mapped, never loaded.
#[derive(Debug)]
pub struct Batches {
    map: Mmap,
    /// Where in the file the ids are.
    ids: Range<usize>,
    steps: usize,
    batch: usize,
    /// Ids of a sequence: inputs and one more.
    length: usize,
    vocabulary: usize,
    fingerprint: String,
}

impl Batches {
    /// Opens `path` and checks its shape against `batch` and `tokens`, and every id.
    pub fn open(path: &Path, batch: usize, tokens: usize) -> Result<Batches, DataError> {
        let map = map(path)?;
        let (ids, steps) = find(path, &map, batch, tokens)?;
        let length = tokens + 1;
        let mut largest = 0;
        for (index, id) in numbers(&map[ids.clone()]).enumerate() {
            let Ok(id) = u32::try_from(id) else {
                let (column, row) = (index % length, index / length);
                let (step, row) = (row / batch, row % batch);
                return Err(DataError::Id { path: path.to_owned(), step, row, column, id });
            };
            largest = largest.max(id);
        }
        let fingerprint = blake3::hash(&map[ids.clone()]).to_hex().to_string();
        let vocabulary = largest as usize + 1;
        Ok(Batches { map, ids, steps, batch, length, vocabulary, fingerprint })
    }
}

impl Source for Batches {
    fn batch(&self, step: u64) -> Result<Vec<Sequence>, DataError> {
        let batches = self.steps as u64;
        if step >= batches {
            return Err(DataError::End { step, batches });
        }
        let bytes = self.batch * self.length * WIDTH;
        let rows = &self.map[self.ids.clone()][step as usize * bytes..][..bytes];
        let sequences = rows.chunks_exact(self.length * WIDTH).map(|row| {
            let ids: Vec<u32> = numbers(row).map(|id| id as u32).collect();
            Sequence::shifted(&ids)
        });
        Ok(sequences.collect())
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

fn map(path: &Path) -> Result<Mmap, DataError> {
    let read = |source| DataError::Read { path: path.to_owned(), source };
    if !path.metadata().map_err(read)?.is_file() {
        return Err(DataError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read)?;
    // SAFETY: the map is only read, as plain bytes, any value of which is valid.
    unsafe { Mmap::map(&file) }.map_err(read)
}

/// Where `tokens` lies in the file and how many steps it has.
fn find(
    path: &Path,
    map: &Mmap,
    batch: usize,
    tokens: usize,
) -> Result<(Range<usize>, usize), DataError> {
    for (what, found) in [("data.tokens", tokens), ("data.batch", batch)] {
        if found == 0 {
            return Err(DataError::TooFew { what, found, wanted: 1 });
        }
    }
    let broken = |message: String| DataError::Batches { path: path.to_owned(), message };
    let tensors = SafeTensors::deserialize(map).map_err(|error| broken(error.to_string()))?;
    let Ok(tensor) = tensors.tensor("tokens") else {
        let names: Vec<_> = tensors.names().into_iter().map(|name| format!("`{name}`")).collect();
        return Err(broken(format!("found {}, wanted `tokens`", list(names))));
    };
    match *tensor.shape() {
        [steps, rows, length]
            if tensor.dtype() == Dtype::I64
                && rows == batch
                && Some(length) == tokens.checked_add(1) =>
        {
            let start = tensor.data().as_ptr() as usize - map.as_ptr() as usize;
            Ok((start..start + tensor.data().len(), steps))
        }
        _ => Err(DataError::Shape {
            path: path.to_owned(),
            found: format!("{:?} {:?}", tensor.dtype(), tensor.shape()),
            wanted: format!("I64 [any, {batch}, {}]", tokens.saturating_add(1)),
        }),
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
