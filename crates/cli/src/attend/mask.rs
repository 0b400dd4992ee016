//! The name of a mask: its rules joined by `+`, in the words of the experiment file.

use std::collections::BTreeSet;
use std::ops::Range;

use annulus_sequence::{Documents, Mask, Positions, Rule};
use candle_core::Tensor;

use super::case::{Wrong, whole_numbers};

/// The words, as one writes them.
const WORDS: &str = "full, causal, prefix:N, documents, padding, padding:N, window:N, strided:N, \
                     fixed:N:COLUMNS, sinks:N, global:0-3,17";
/// More than any position.
const MOST: usize = 1 << 41;

/// What a file says beside the name.
pub(super) struct Given<'a> {
    pub(super) batch: usize,
    pub(super) queries: &'a Positions,
    pub(super) keys: &'a Positions,
    /// For every row of the sequence the document that it is in: [S] or [B, S].
    pub(super) documents: Option<Tensor>,
    /// The first position that is padding: [1] or [B].
    pub(super) padding: Option<Tensor>,
}

/// `causal`, `causal+window:7`, `prefix:13+documents`, `full`.
pub(super) fn mask_of(name: &str, given: &Given<'_>) -> Result<Mask, Wrong> {
    name.split('+').try_fold(Mask::full(), |mask, part| {
        let rule = rule_of(part, given)?;
        Ok(rule.into_iter().fold(mask, Mask::and))
    })
}

/// One part; `full` is none.
fn rule_of(part: &str, given: &Given<'_>) -> Result<Option<Rule>, Wrong> {
    let (word, numbers) = part.split_once(':').map_or((part, None), |(a, b)| (a, Some(b)));
    let one = || number(part, numbers.unwrap_or_default(), 0);
    Ok(Some(match (word, numbers) {
        ("full", None) => return Ok(None),
        ("causal", None) => Rule::Causal,
        ("documents", None) => documents(given)?,
        ("padding", None) => padding(given)?,
        ("padding", Some(_)) => Rule::KeyPadding(vec![one()?]),
        ("prefix", Some(_)) => Rule::Prefix(one()?),
        ("window", Some(_)) => Rule::Window(one()?),
        ("sinks", Some(_)) => Rule::Sinks(one()?),
        ("strided", Some(stride)) => Rule::Strided { stride: number(part, stride, 1)? },
        ("fixed", Some(numbers)) => fixed(part, numbers)?,
        ("global", Some(ranges)) => Rule::Global(
            ranges.split(',').map(|range| positions(part, range)).collect::<Result<_, _>>()?,
        ),
        ("prefix" | "window" | "sinks" | "strided" | "fixed" | "global", None) => {
            return Err(no_number(part));
        }
        _ => {
            let text = format!("the mask `{part}` is not supported");
            return Err(Wrong::new(text, format!("join some of these by `+`: {WORDS}")));
        }
    }))
}

fn no_number(part: &str) -> Wrong {
    let text = format!("the mask `{part}` needs a number");
    Wrong::new(text, format!("write it as one of these: {WORDS}"))
}

/// A whole number from `least` on.
fn number(part: &str, number: &str, least: usize) -> Result<usize, Wrong> {
    let read: usize = number.parse().map_err(|_| no_number(part))?;
    if (least..MOST).contains(&read) {
        return Ok(read);
    }
    let text = format!("the mask `{part}` has {read}, wanted {least} to {}", MOST - 1);
    Err(Wrong::new(text, format!("write it as one of these: {WORDS}")))
}

/// `7:2`, or `7` for the last column alone.
fn fixed(part: &str, numbers: &str) -> Result<Rule, Wrong> {
    let (block, columns) = numbers.split_once(':').unwrap_or((numbers, "1"));
    let (block, columns) = (number(part, block, 1)?, number(part, columns, 0)?);
    if columns > block {
        let text = format!("the mask `{part}` has {columns} columns in blocks of {block}");
        return Err(Wrong::new(text, format!("at most `fixed:{block}:{block}`")));
    }
    Ok(Rule::Fixed { block, columns })
}

/// `17`, or `0-3`, both ends included.
fn positions(part: &str, range: &str) -> Result<Range<usize>, Wrong> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(part, first, 0)?, number(part, last, 0)?);
    if first > last {
        let text = format!("the mask `{part}` has positions {first} to {last}");
        return Err(Wrong::new(text, "the smaller position comes first"));
    }
    Ok(first..last + 1)
}

fn documents(given: &Given<'_>) -> Result<Rule, Wrong> {
    let tokens = given.queries.tokens();
    let whole = Positions::all(tokens);
    let hint = format!(
        "`doc_ids` is I64 [{tokens}] or [{}, {tokens}]: the document that each position is in",
        given.batch
    );
    let Some(ids) = &given.documents else {
        return Err(Wrong::new("the mask has `documents`, but there is no tensor `doc_ids`", hint));
    };
    if [given.queries, given.keys].iter().any(|positions| **positions != whole) {
        let text = "the mask has `documents`, but `q_pos` and `k_pos` are not one whole sequence";
        return Err(Wrong::new(text, "documents are those of positions 0 .. S, all of them"));
    }
    let ids = whole_numbers("doc_ids", ids, &hint)?;
    if ids.len() != tokens && ids.len() != given.batch * tokens {
        let text = format!("`doc_ids` has {} elements, wanted {tokens}", ids.len());
        return Err(Wrong::new(text, hint));
    }
    let rows = ids.chunks(tokens).map(lengths);
    Ok(Rule::Documents(rows.collect::<Result<_, _>>()?))
}

/// The documents of one sequence, each one neighbouring positions.
fn lengths(ids: &[i64]) -> Result<Documents, Wrong> {
    let runs: Vec<&[i64]> = ids.chunk_by(|a, b| a == b).collect();
    let mut seen = BTreeSet::new();
    let firsts = runs.iter().filter_map(|run| run.first());
    if let Some(document) = firsts.into_iter().find(|id| !seen.insert(**id)) {
        let text = format!("`doc_ids` has document {document} in two places");
        return Err(Wrong::new(
            text,
            "documents lie one after the other: give each an id of its own",
        ));
    }
    Ok(Documents::of_lengths(&runs.iter().map(|run| run.len()).collect::<Vec<_>>()))
}

fn padding(given: &Given<'_>) -> Result<Rule, Wrong> {
    let hint = format!(
        "`padding` is I64 [{}]: for each batch row the first position that is padding; or write `padding:N`",
        given.batch
    );
    let Some(padding) = &given.padding else {
        return Err(Wrong::new("the mask has `padding`, but there is no tensor `padding`", hint));
    };
    let ends = whole_numbers("padding", padding, &hint)?;
    if ends.len() != 1 && ends.len() != given.batch {
        let text = format!("`padding` has {} elements, wanted {}", ends.len(), given.batch);
        return Err(Wrong::new(text, hint));
    }
    let end = |end: i64| {
        let text = format!("`padding` has position {end}, wanted 0 to {}", MOST - 1);
        let end = usize::try_from(end).ok().filter(|end| *end < MOST);
        end.ok_or_else(|| Wrong::new(text, hint.clone()))
    };
    Ok(Rule::KeyPadding(ends.into_iter().map(end).collect::<Result<_, _>>()?))
}
