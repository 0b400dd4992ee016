//! What a tokenizer puts around documents and between them.

use super::{NEXT_DOCUMENT, Tokenizer};
use crate::DataError;

impl Tokenizer {
    /// The ids of a `text` that is to be continued. It is a document's beginning: one that has what documents begin with
    /// written out gets it no second time.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let before = self.before();
        let mut ids = before.to_vec();
        self.encode(text, &mut |more| ids.extend_from_slice(more))?;
        if ids[before.len()..].starts_with(before) {
            ids.drain(..before.len());
        }
        Ok(ids)
    }

    /// The tokens that begin and end a document, as text, where a `tokenizer.json` has them.
    pub fn special(&self) -> (Option<String>, Option<String>) {
        let Tokenizer::Json(json) = self else { return (None, None) };
        let text = |id: Option<&u32>| json.inner.id_to_token(*id?);
        (text(json.before.last()), text(json.after.first()))
    }

    /// What a document begins with.
    pub fn before(&self) -> &[u32] {
        match self {
            Tokenizer::Bytes => &[],
            Tokenizer::Json(json) => &json.before,
        }
    }

    /// Tokens that end what is generated: what follows a document, or stands between two.
    pub fn ends(&self) -> &[u32] {
        if matches!(self, Tokenizer::Bytes) { self.between() } else { self.after() }
    }

    /// What is added to a document where another follows: it is the end of the one before.
    pub fn between(&self) -> &[u32] {
        match self {
            Tokenizer::Bytes => &[NEXT_DOCUMENT],
            Tokenizer::Json(_) => &[],
        }
    }

    /// What every document ends with, also the last.
    pub fn after(&self) -> &[u32] {
        match self {
            Tokenizer::Bytes => &[],
            Tokenizer::Json(json) => &json.after,
        }
    }
}
