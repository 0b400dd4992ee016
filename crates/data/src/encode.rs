//! The tokens of a text of any length, in linear time and bounded memory.
//!
//! Pieces of a text are encoded with an overlap and joined where it is sure that the tokens of the one
//! before and of the other after are those of the whole (`encode/pieces.rs`); which places those are
//! depends on the tokenizer's steps (`encode/steps.rs`). A tokenizer with a step of which that is not
//! known encodes whole documents, up to [`WHOLE`] bytes.

mod agreement;
mod pieces;
mod steps;

use std::panic::resume_unwind;
use std::thread;

use crate::{DataError, Tokenizer};
use agreement::Token;
pub(crate) use pieces::{Pieces, Sizes};
pub(crate) use steps::Cuts;

/// Ids handed on at a time.
const HANDED: usize = 1 << 12;

/// The longest stretch that is encoded at once, in bytes: it takes about two hundred times as much.
pub(crate) const WHOLE: usize = 1 << 21;

/// The longest stretch that is encoded at once, in bytes, by a tokenizer that makes a text up to `growth` times as long.
pub(crate) fn longest(growth: usize) -> usize {
    WHOLE / shorter(growth)
}

/// How many times shorter pieces are than usual: tokenizers in use make a text up to four times as long.
fn shorter(growth: usize) -> usize {
    growth.div_ceil(4).max(1)
}

/// Threads that encode at once, if there are as many cores.
const THREADS: usize = 16;

/// Pieces a thread encodes in a row: tokenizers remember words, each thread its own.
const IN_A_ROW: usize = 8;

/// What takes the ids.
pub(crate) type Into<'a> = &'a mut dyn FnMut(&[u32]) -> Result<(), DataError>;

/// Encodes one document that comes in parts.
#[derive(Debug)]
pub(crate) enum Encoder<'a> {
    Bytes,
    Pieces(Pieces<'a>),
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Encoder<'a> {
        match tokenizer {
            Tokenizer::Bytes => Encoder::Bytes,
            Tokenizer::Json(json) => Encoder::Pieces(Pieces::new(json, Sizes::large(json.growth))),
        }
    }

    /// Takes the next part of the document; hands on what is certain by now.
    pub(crate) fn push(&mut self, text: &str, into: Into<'_>) -> Result<(), DataError> {
        match self {
            Encoder::Bytes => bytes(text, into),
            Encoder::Pieces(pieces) => pieces.push(text, into),
        }
    }

    /// The document is over; hands on the rest.
    pub(crate) fn finish(&mut self, into: Into<'_>) -> Result<(), DataError> {
        match self {
            Encoder::Bytes => Ok(()),
            Encoder::Pieces(pieces) => pieces.advance(true, into),
        }
    }
}

fn bytes(text: &str, into: Into<'_>) -> Result<(), DataError> {
    let mut ids = [0; HANDED];
    for bytes in text.as_bytes().chunks(HANDED) {
        ids.iter_mut().zip(bytes).for_each(|(id, &byte)| *id = byte.into());
        into(&ids[..bytes.len()])?;
    }
    Ok(())
}

/// What `make` makes of `items`, in order; neighbours are made on the same thread. Where the system has
/// no more threads, the caller makes them.
pub(crate) fn in_threads<T: Sync, M: Send>(
    items: &[T],
    make: impl Fn(&T) -> Result<M, DataError> + Sync,
) -> Result<Vec<M>, DataError> {
    if items.len() < 2 {
        return items.iter().map(make).collect();
    }
    let make = &make;
    thread::scope(|scope| {
        let parts = items.chunks(items.len().div_ceil(threads()));
        let start =
            |part: &'_ [T]| -> Result<Vec<M>, DataError> { part.iter().map(make).collect() };
        let thread = |part| {
            let builder = thread::Builder::new().name("encoding".to_owned());
            builder.spawn_scoped(scope, move || start(part)).map_err(|_| part)
        };
        let threads: Vec<_> = parts.map(thread).collect();
        let mut made = Vec::with_capacity(items.len());
        for thread in threads {
            made.extend(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic))?,
                Err(part) => start(part)?,
            });
        }
        Ok(made)
    })
}

fn threads() -> usize {
    annulus_machine::cores().min(THREADS)
}

/// The place of a character of `text` at or before `place`, or its end; never 0 but in an empty text.
fn floor(text: &str, place: usize) -> usize {
    let place = place.min(text.len());
    let before = (1..=place).rev().find(|&place| text.is_char_boundary(place));
    before.unwrap_or_else(|| text.chars().next().map_or(0, char::len_utf8))
}

/// Hands the ids of `tokens` on.
fn hand<'t>(tokens: impl Iterator<Item = &'t Token>, into: Into<'_>) -> Result<(), DataError> {
    let ids: Vec<u32> = tokens.map(|token| token.id).collect();
    ids.chunks(HANDED).try_for_each(into)
}

#[cfg(test)]
mod tests;
