//! Encodes one document in pieces that overlap, and joins them.
//!
//! ```text
//! left    … w  a  s ·  t h e ·  b e s t ·  o f ·  t i |            the end of the piece may be wrong
//! right                   | h e ·  b e s t ·  o f ·  t i m e s …   and so may be its beginning
//!                              ^^^^^^^^^^^^^^^^^^^
//! ```
//!
//! They are joined at a token of the zone in which both see the same words as the whole text
//! ([`super::Cuts::zone`]), in the middle of eight tokens that are the same in both, if one of these holds:
//!
//! - The token begins a word. Words are encoded one by one.
//! - The tokenizer encodes byte pairs and drops no character. A list of tokens is then the encoding of
//!   its word if and only if every two neighbours are the encoding of theirs: take the first merge of
//!   the whole that joins two tokens of the list; until then each pair of tokens went its own way,
//!   lowest rank first, so that the pair would have made the same merge by itself. Neighbours in the
//!   joined list are neighbours in one of the two.
//!
//! Agreement alone would not do: in "aaaaaaaa" it may be an accident, a unigram model breaks ties by
//! rounding, which depends on all of the word before, and three digits are a word or not by where the
//! number began.
//!
//! Where the pieces cannot be joined the right one is encoded anew from the beginning of a word of the
//! left one; if that does not help, the left one is made longer, up to a limit.

use std::ops::Range;

use super::agreement::agreement;
use super::{IN_A_ROW, Into, Token, floor, hand, in_threads, longest, shorter, threads};
use crate::DataError;
use crate::tokenizer::JsonTokenizer;

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
    /// Long enough for the overlap to cost little, short enough for all threads to hold one, also where a text becomes
    /// `growth` times as long.
    pub(super) fn large(growth: usize) -> Sizes {
        let batch = threads() * IN_A_ROW;
        let (piece, limit) = ((1 << 17) / shorter(growth), longest(growth));
        Sizes { piece, overlap: 1 << 12, limit, batch }
    }
}

/// Encodes one document with a `tokenizer.json`. Places are in bytes of the document.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    json: &'a JsonTokenizer,
    sizes: Sizes,
    /// The part of the document from `start` on that has been read.
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
    pub(crate) fn new(json: &'a JsonTokenizer, sizes: Sizes) -> Pieces<'a> {
        let end = if json.cuts.is_ok() { sizes.piece + sizes.overlap } else { usize::MAX };
        let (text, at_once) = (String::new(), sizes.batch);
        Pieces { json, sizes, text, start: 0, end, open: None, from: 0, at_once }
    }

    /// Takes the next part of the document, of any length; hands on what is certain by now.
    pub(crate) fn push(&mut self, mut text: &str, into: Into<'_>) -> Result<(), DataError> {
        while !text.is_empty() {
            let (head, tail) = text.split_at(floor(text, self.sizes.piece));
            self.text.push_str(head);
            text = tail;
            if let Err(step) = &self.json.cuts {
                if self.text.len() > self.sizes.limit {
                    let (step, limit) = (step.clone(), self.sizes.limit);
                    return Err(DataError::Whole { step, limit });
                }
            } else if self.text.len() > (self.sizes.batch + 1) * self.sizes.piece {
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
        let mut place = self.agreement(&open, &right, false);
        if place.is_none() {
            range.start = self.aligned(&open, range.start);
            right = self.encode(range.clone())?;
            place = self.agreement(&open, &right, true);
        }
        let Some(place) = place else { return Ok(false) };
        let certain = |token: &&Token| (self.from..place).contains(&token.start);
        hand(open.iter().filter(certain), into)?;
        self.text.drain(..range.start - self.start);
        (self.start, self.end, self.from) = (range.start, range.end, place);
        self.open = Some(right);
        Ok(true)
    }

    /// Where the open piece and the next can be joined. `aligned`: the next begins with a word of the
    /// open one, or in the middle of one that goes on for all of the overlap.
    ///
    /// Space at the end of the open piece has no say: some tokens swallow all space before them, and
    /// one of those may follow.
    fn agreement(&self, open: &[Token], right: &[Token], aligned: bool) -> Option<usize> {
        let cuts = self.json.cuts.as_ref().ok()?;
        let start = right.first()?.start.max(self.start);
        let overlap = self.text.get(start - self.start..self.end - self.start)?;
        let (first, last) = cuts.zone(overlap, aligned)?;
        let solid = self.start + self.text[..self.end - self.start].trim_end().len();
        let open = &open[..open.partition_point(|token| token.start < solid)];
        agreement(open, right, &|place, begins| {
            (start + first..=start + last).contains(&place)
                && (begins || self.json.exact)
                && cuts.seam(&self.text, place - self.start)
        })
    }

    /// Where a word of the open piece begins, in the first half of the overlap, which `start` begins;
    /// `start` if none does.
    fn aligned(&self, open: &[Token], start: usize) -> usize {
        let half = start..=usize::midpoint(start, self.end);
        let starts = open.iter().filter(|token| token.begins).map(|token| token.start);
        let place = starts.rev().find(|place| half.contains(place) && self.floor(*place) == *place);
        place.unwrap_or(start)
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
        let offset = range.start as u64;
        let encoding = self.json.encoding(text);
        let encoding = encoding.map_err(|message| DataError::Encode { offset, message })?;
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
