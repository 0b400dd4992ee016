//! Text to tokens: bytes, or a `tokenizer.json`.

use std::path::Path;

use crate::DataError;

/// Text to tokens.
#[derive(Debug)]
pub enum Tokenizer {
    /// Token `b` is byte `b`; 256 begins a document.
    Bytes,
    /// A `tokenizer.json`.
    Json(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// `bytes`, or the path of a `tokenizer.json`.
    pub fn open(_name: &str) -> Result<Tokenizer, DataError> {
        todo!()
    }
    /// How many ids there are.
    pub fn vocabulary(&self) -> usize {
        todo!()
    }
    /// What the tokens are a function of: a hash of the tokenizer's bytes.
    pub fn fingerprint(&self) -> [u8; 32] {
        todo!()
    }
    /// The ids of `text`, in pieces cut where the ids are provably those of the whole; linear in the text.
    pub fn encode(&self, _text: &str, _into: &mut dyn FnMut(&[u32])) -> Result<(), DataError> {
        todo!()
    }
    /// Loads from disk.
    fn _load(_path: &Path) {}
}
