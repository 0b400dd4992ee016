//! Tokenised once: a memory-mapped file of ids beside an index, named by the hash of everything it depends on.

use std::path::{Path, PathBuf};

use crate::{DataError, Tokenizer};

/// The tokens of a text or a folder of texts, on disk and mapped. 64-bit offsets; nothing is loaded whole.
#[derive(Debug)]
pub struct Cache {
    _path: PathBuf,
}

impl Cache {
    /// Opens the cache of `inputs` under `folder`, or builds it first: atomically, in linear time and bounded memory, so that a
    /// second process or a crash never sees half of one. `jsonl` takes the field `text` of every line. Folders are walked in name
    /// order. `progress(done, total)` counts bytes.
    pub fn open(
        _inputs: &[PathBuf],
        _jsonl: bool,
        _tokenizer: &Tokenizer,
        _folder: &Path,
        _progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Cache, DataError> {
        todo!()
    }
    /// How many tokens there are.
    pub fn tokens(&self) -> u64 {
        todo!()
    }
    /// The tokens `start .. start + into.len()`.
    pub fn read(&self, _start: u64, _into: &mut [u32]) {
        todo!()
    }
    /// A hash of inputs and tokenizer: what a checkpoint compares on resume.
    pub fn fingerprint(&self) -> &str {
        todo!()
    }
    /// Where documents start, in order.
    pub fn documents(&self) -> &[u64] {
        todo!()
    }
}
