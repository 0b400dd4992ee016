//! The file of ids under construction.

use std::io::{Seek, Write};
use std::path::Path;

use crate::header::{HEADER, Header};
use crate::{DataError, Tokenizer};

/// Where ids are written to.
pub(crate) trait Out: Write + Seek {}

impl<T: Write + Seek> Out for T {}

/// What is written of a cache so far.
pub(crate) struct Ids<'a> {
    /// What it is called in errors.
    path: &'a Path,
    file: &'a mut dyn Out,
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
    pub(crate) fn begin_file(
        path: &'a Path,
        file: &'a mut dyn Out,
        tokenizer: &'a Tokenizer,
    ) -> Result<Ids<'a>, DataError> {
        let written = file.write_all(&[0; HEADER]);
        written.map_err(|source| DataError::Write { path: path.to_owned(), source })?;
        let width = if tokenizer.vocabulary() <= 1 << 16 { 2 } else { 4 };
        let hasher = blake3::Hasher::new();
        let (bytes, documents, learned) = (Vec::new(), Vec::new(), Vec::new());
        let (tokens, largest) = (0, None);
        Ok(Ids { path, file, tokenizer, hasher, bytes, width, tokens, largest, documents, learned })
    }

    /// A document as it is, with nothing before or after it: the template has said all.
    pub(crate) fn conversation(&mut self, tokens: &[(u32, bool)]) -> Result<(), DataError> {
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

    /// A document begins.
    pub(crate) fn begin(&mut self) -> Result<(), DataError> {
        if !self.documents.is_empty() {
            self.push(self.tokenizer.between())?;
        }
        self.documents.push(self.tokens);
        self.push(self.tokenizer.before())
    }

    /// The document is over; of one without a token nothing remains.
    pub(crate) fn end(&mut self) -> Result<(), DataError> {
        self.push(self.tokenizer.after())?;
        self.documents.pop_if(|start| *start == self.tokens);
        Ok(())
    }

    pub(crate) fn push(&mut self, ids: &[u32]) -> Result<(), DataError> {
        let vocabulary = self.tokenizer.vocabulary();
        if let Some(&id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            return Err(DataError::Beyond { id, tokens: vocabulary });
        }
        self.tokens += ids.len() as u64;
        self.largest = self.largest.max(ids.iter().max().copied());
        self.bytes.resize(ids.len() * self.width, 0);
        if self.width == 2 {
            let (places, _) = self.bytes.as_chunks_mut::<2>();
            // Below the vocabulary, which has at most 65536.
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
        written.map_err(|source| DataError::Write { path: self.path.to_owned(), source })
    }

    /// Writes what comes behind the ids, and the header.
    pub(crate) fn finish(mut self, key: blake3::Hash) -> Result<(), DataError> {
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
            self.file.flush()
        };
        end().map_err(|source| DataError::Write { path: self.path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn an_id_that_the_tokenizer_does_not_have_is_refused() {
        let mut file = Cursor::new(Vec::new());
        let mut ids = Ids::begin_file(Path::new("x"), &mut file, &Tokenizer::Bytes).unwrap();
        ids.push(&[0, 256]).unwrap();
        // As 16 bits it would be 97.
        let error = ids.push(&[65_633]).unwrap_err();
        assert_eq!(error.to_string(), "the tokenizer gives the id 65633, but has 257 tokens");
    }
}
