//! The tokens of a text of any length, in linear time and bounded memory.
//!
//! A `tokenizer.json` is a chain of rewriting rules, regular expressions and merges of which little is
//! known in general: no place in a text is safe to cut for all of them. So nothing is assumed and
//! everything is checked. Pieces of the text are encoded with an overlap:
//!
//! ```text
//! left    … w  a  s ·  t h e ·  b e s t ·  o f ·  t i |            the end of the piece may be wrong
//! right                   | h e ·  b e s t ·  o f ·  t i m e s …   and so may be its beginning
//!                              ^^^^^^^^^^^^^^^^^^^
//! ```
//!
//! and are joined at a token in the middle of a stretch of at least eight tokens where both have the
//! same ids at the same places, if one of these holds:
//!
//! - The token begins a word, as the tokenizer's splitter sees it, in both. Splitters read from left to
//!   right, so that what follows depends on the place alone, and words are encoded one by one.
//! - The tokenizer encodes byte pairs and drops no character. A list of tokens is then the encoding of
//!   its text if and only if every two neighbours are the encoding of theirs, and neighbours in the
//!   joined list are neighbours in one of the two.
//!
//! Agreement alone would not do: in "aaaaaaaa" it may be an accident, and a unigram model breaks ties
//! by rounding, which depends on all of the word before.
//!
//! Where the pieces do not agree (a long number cut into groups of three, say) the right one is
//! encoded anew from the beginning of a token of the left one; if that does not help, the left one
//! is made longer, up to a limit.

mod agreement;

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use crate::tokenizer::Json;
use crate::{DataError, Tokenizer};
use agreement::{Token, agreement};

/// Ids handed on at a time.
const HANDED: usize = 1 << 12;

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
            Tokenizer::Json(json) => Encoder::Pieces(Pieces::new(json, Sizes::large())),
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

/// The ids of several texts, each by itself.
pub(crate) fn encode_texts(
    texts: &[String],
    tokenizer: &Tokenizer,
) -> Result<Vec<Vec<u32>>, DataError> {
    in_threads(texts, |text: &String| {
        let mut ids = Vec::new();
        tokenizer.encode(text, &mut |part| ids.extend_from_slice(part))?;
        Ok(ids)
    })
}

fn bytes(text: &str, into: Into<'_>) -> Result<(), DataError> {
    let mut ids = [0; HANDED];
    for bytes in text.as_bytes().chunks(HANDED) {
        ids.iter_mut().zip(bytes).for_each(|(id, &byte)| *id = byte.into());
        into(&ids[..bytes.len()])?;
    }
    Ok(())
}

/// Lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// From the beginning of a piece to the beginning of the next.
    pub(crate) piece: usize,
    /// From there to its end.
    pub(crate) overlap: usize,
    /// The longest piece tried where shorter ones do not agree.
    pub(crate) limit: usize,
    /// Pieces encoded at once.
    pub(crate) batch: usize,
}

impl Sizes {
    /// Long enough for the overlap to cost little, short enough for all threads to hold one.
    fn large() -> Sizes {
        let batch = threads() * IN_A_ROW;
        Sizes { piece: 1 << 17, overlap: 1 << 12, limit: 1 << 21, batch }
    }
}

/// Encodes one document with a `tokenizer.json`. Places are in bytes of the document.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    json: &'a Json,
    sizes: Sizes,
    /// The document from `start` on, as far as it has come.
    text: String,
    /// Where the open piece starts.
    start: usize,
    /// Where it ends, or is to end once enough text has come.
    end: usize,
    /// The open piece: its end is not certain yet. None: it is to be encoded.
    open: Option<Vec<Token>>,
    /// Tokens that start before have been handed on.
    from: usize,
    /// How many pieces to encode at once next: few after a failure, whose successors are for nothing.
    at_once: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(json: &'a Json, sizes: Sizes) -> Pieces<'a> {
        let end = sizes.piece + sizes.overlap;
        let (text, at_once) = (String::new(), sizes.batch);
        Pieces { json, sizes, text, start: 0, end, open: None, from: 0, at_once }
    }

    /// Takes the next part of the document, of any length; hands on what is certain by now.
    pub(crate) fn push(&mut self, mut text: &str, into: Into<'_>) -> Result<(), DataError> {
        while !text.is_empty() {
            let (head, tail) = text.split_at(floor(text, self.sizes.piece));
            self.text.push_str(head);
            text = tail;
            if self.text.len() > (self.sizes.batch + 1) * self.sizes.piece {
                self.advance(false, into)?;
            }
        }
        Ok(())
    }

    /// Goes on as far as the text reaches; to its end if it is the `last` of it.
    pub(crate) fn advance(&mut self, last: bool, into: Into<'_>) -> Result<(), DataError> {
        loop {
            let Some(open) = &self.open else {
                let Some(end) = self.reach(self.end, last) else { return Ok(()) };
                self.end = end;
                let open = self.encode(self.start..end)?;
                if self.from > self.start && !open.iter().any(|token| token.start == self.from) {
                    return Err(self.no_cut());
                }
                self.open = Some(open);
                continue;
            };
            if last && self.end == self.start + self.text.len() {
                return hand(open.iter().filter(|token| token.start >= self.from), into);
            }
            let ranges = self.next_ranges(last);
            if ranges.is_empty() {
                return Ok(());
            }
            self.at_once = (self.at_once * 2).min(self.sizes.batch);
            let rights = in_threads(&ranges, |range| self.encode(range.clone()))?;
            for (range, right) in ranges.into_iter().zip(rights) {
                if !self.join(range, right, into)? {
                    self.grow()?;
                    self.at_once = 1;
                    break;
                }
            }
        }
    }

    /// The place of a character at or before `place`, if the text reaches that far or is all there.
    fn reach(&self, place: usize, last: bool) -> Option<usize> {
        let end = self.start + self.text.len();
        if place < end {
            return Some(self.floor(place));
        }
        (last || place == end).then_some(end)
    }

    /// The place of a character at or before `place`.
    fn floor(&self, place: usize) -> usize {
        self.start + floor(&self.text, place - self.start)
    }

    /// The pieces that follow the open one, as many as there is text for.
    fn next_ranges(&self, last: bool) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let mut end = self.end;
        while ranges.len() < self.at_once && end < self.start + self.text.len() {
            let start = self.floor(end - self.sizes.overlap.min(end - self.start));
            let Some(next) = self.reach(start + self.sizes.piece + self.sizes.overlap, last) else {
                break;
            };
            ranges.push(start..next);
            end = next;
        }
        ranges
    }

    /// Joins the open piece to its successor, which covers `range`; false if they do not agree.
    fn join(
        &mut self,
        mut range: Range<usize>,
        mut right: Vec<Token>,
        into: Into<'_>,
    ) -> Result<bool, DataError> {
        let Some(open) = self.open.take() else { return Ok(false) };
        let mut place = self.agreement(&open, &right);
        if place.is_none()
            && let Some(start) = self.aligned(&open, range.start)
        {
            range.start = start;
            right = self.encode(range.clone())?;
            place = self.agreement(&open, &right);
        }
        let Some(place) = place else { return Ok(false) };
        let certain = |token: &&Token| (self.from..place).contains(&token.start);
        hand(open.iter().filter(certain), into)?;
        self.text.drain(..range.start - self.start);
        (self.start, self.end, self.from) = (range.start, range.end, place);
        self.open = Some(right);
        Ok(true)
    }

    /// Where the open piece and the next can be joined.
    ///
    /// Space at the end of the open piece has no say: some tokens swallow all space before them, and
    /// one of those may follow.
    fn agreement(&self, open: &[Token], right: &[Token]) -> Option<usize> {
        let solid = self.start + self.text[..self.end - self.start].trim_end().len();
        let open = &open[..open.partition_point(|token| token.start < solid)];
        agreement(open, right, self.json.exact)
    }

    /// Where a token of the open piece starts, in the first half of the overlap, which `start` begins.
    fn aligned(&self, open: &[Token], start: usize) -> Option<usize> {
        let half = start..=usize::midpoint(start, self.end);
        let starts = open.iter().map(|token| token.start);
        starts.rev().find(|place| half.contains(place) && self.floor(*place) == *place)
    }

    /// Makes the open piece twice as long.
    fn grow(&mut self) -> Result<(), DataError> {
        let length = self.end - self.start;
        if length >= self.sizes.limit {
            return Err(self.no_cut());
        }
        self.end = self.start + 2 * length;
        Ok(())
    }

    fn no_cut(&self) -> DataError {
        DataError::NoCut { offset: self.start as u64, bytes: self.end - self.start }
    }

    fn encode(&self, range: Range<usize>) -> Result<Vec<Token>, DataError> {
        let text = &self.text[range.start - self.start..range.end - self.start];
        let encoding = self.json.inner.encode(text, false).map_err(|error| DataError::Encode {
            offset: range.start as u64,
            message: error.to_string(),
        })?;
        let words = encoding.get_word_ids();
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets()).enumerate();
        let place = |(index, (&id, &(start, end))): (usize, (&u32, &(usize, usize)))| Token {
            id,
            start: range.start + start,
            end: range.start + end,
            begins: index == 0 || words[index] != words[index - 1],
        };
        Ok(tokens.map(place).collect())
    }
}

/// What `make` makes of `items`, in order; neighbours are made on the same thread.
fn in_threads<T: Sync, M: Send>(
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
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || start(part))).collect();
        let mut made = Vec::with_capacity(items.len());
        for thread in threads {
            made.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(made)
    })
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS)
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
