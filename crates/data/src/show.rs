//! What a source holds, for people to look at: tokens beside the text they stand for.

use std::fmt::Write as _;

use annulus_text::count;

use crate::{DataError, IGNORED, Sequence, Tokenizer};

/// The first `most` places of `sequence`, a line each: place, document, the id there and its text, and the
/// text of the one that is to be foretold from it, where that is learned. [Padding](count_padding) is one line.
///
/// # Errors
/// Those of [`Tokenizer::decode`].
pub fn show(sequence: &Sequence, tokenizer: &Tokenizer, most: usize) -> Result<String, DataError> {
    let lengths = sequence.documents.iter().copied();
    let numbers = lengths.enumerate().flat_map(|(index, length)| vec![index + 1; length]);
    let mut numbers = numbers.chain(std::iter::repeat(1));
    let padding = count_padding(sequence);
    let inside = sequence.inputs.len() - padding;
    let places = sequence.inputs.iter().zip(&sequence.targets).enumerate().take(most.min(inside));
    let mut text = String::new();
    for (place, (&id, &target)) in places {
        let document = numbers.next().unwrap_or_default();
        let word = format!("{:?}", tokenizer.decode(&[id])?);
        let learned = match u32::try_from(target) {
            Ok(target) => format!("{:?}", tokenizer.decode(&[target])?),
            Err(_) => String::from("-"),
        };
        let _ = writeln!(text, "{place:>7} {document:>5} {id:>7} {word:<20} {learned}");
    }
    if padding > 0 && most > inside {
        let _ = writeln!(text, "padding: {}", count(padding, "token"));
    }
    Ok(text)
}

/// The number of tokens at the end of a sequence that are padding: those of the last of its `documents`, if it has no target.
/// Every other document has one.
pub fn count_padding(sequence: &Sequence) -> usize {
    let last = sequence.documents.last().copied().unwrap_or_default();
    let targets = &sequence.targets[sequence.targets.len() - last..];
    if targets.iter().all(|target| *target == IGNORED) { last } else { 0 }
}

/// The number of a sequence's targets that the loss counts: all but [`IGNORED`].
pub fn count_targets(sequence: &Sequence) -> usize {
    sequence.targets.iter().filter(|target| **target != IGNORED).count()
}
