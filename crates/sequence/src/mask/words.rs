//! Masks by name: rules joined by `+`, each a word with its numbers, as in `causal+window:4k`.

use std::fmt;
use std::ops::Range;

use super::{Mask, Rule};

/// A number above any position.
const MOST: usize = 1 << 41;

/// An invalid name of a mask, with a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongMask {
    /// The message: what was found.
    pub message: String,
    /// The hint: what could be written.
    pub hint: String,
}

impl Mask {
    /// The words of rules, as one writes them.
    pub const WORDS: &str = "full, causal, prefix:N, padding:N, window:N, dilated:N:D, strided:N, fixed:N:COLUMNS, sinks:N, global:0-3,17";

    /// The mask of a name: `causal`, `causal+window:4k`, `full`.
    ///
    /// # Errors
    /// The first word that is none, or has no number that it could have.
    pub fn from_name(name: &str) -> Result<Mask, WrongMask> {
        name.split('+').try_fold(Mask::full(), |mask, word| {
            Ok(Rule::from_word(word)?.into_iter().fold(mask, Mask::and))
        })
    }
}

impl Rule {
    /// The rule of a word; `None` for `full`.
    ///
    /// # Errors
    /// As [`Mask::from_name`].
    pub fn from_word(word: &str) -> Result<Option<Rule>, WrongMask> {
        let (kind, numbers) = word.split_once(':').unwrap_or((word, ""));
        let one = |least: usize| number(word, numbers, least);
        Ok(Some(match kind {
            "full" if word == kind => return Ok(None),
            "causal" if word == kind => Rule::Causal,
            "padding" => Rule::KeyPadding(vec![one(0)?]),
            "prefix" => Rule::Prefix(one(0)?),
            "window" => Rule::Window(one(0)?),
            "dilated" => {
                let (window, dilation) = numbers.split_once(':').unwrap_or((numbers, ""));
                let (window, dilation) = (number(word, window, 0)?, number(word, dilation, 1)?);
                Rule::Dilated { window, dilation }
            }
            "sinks" => Rule::Sinks(one(0)?),
            "strided" => Rule::Strided { stride: one(1)? },
            "fixed" => fixed(word, numbers)?,
            "global" => Rule::Global(
                numbers.split(',').map(|range| positions(word, range)).collect::<Result<_, _>>()?,
            ),
            _ => {
                let message = format!("the mask `{word}` is not supported");
                let hint = format!("join some of these by `+`: {}", Mask::WORDS);
                return Err(WrongMask { message, hint });
            }
        }))
    }
}

/// The words of the rules, as [`Mask::from_name`] reads them where it can.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rules().is_empty() {
            return f.write_str("full");
        }
        for (index, rule) in self.rules().iter().enumerate() {
            f.write_str(if index > 0 { "+" } else { "" })?;
            write!(f, "{rule}")?;
        }
        Ok(())
    }
}

/// The word of the rule and its numbers, without those of lists that may be long.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Causal => f.write_str("causal"),
            Rule::Prefix(prefix) => write!(f, "prefix:{prefix}"),
            Rule::Documents(_) => f.write_str("documents"),
            Rule::KeyPadding(rows) => match rows[..] {
                [one] => write!(f, "padding:{one}"),
                _ => f.write_str("padding"),
            },
            Rule::Window(width) => write!(f, "window:{width}"),
            Rule::Dilated { window, dilation } => write!(f, "dilated:{window}:{dilation}"),
            Rule::Strided { stride } => write!(f, "strided:{stride}"),
            Rule::Fixed { block, columns } => write!(f, "fixed:{block}:{columns}"),
            Rule::Regions(_) => f.write_str("regions"),
            Rule::Sinks(sinks) => write!(f, "sinks:{sinks}"),
            Rule::Global(_) => f.write_str("global"),
        }
    }
}

fn wrong(message: String) -> WrongMask {
    WrongMask { message, hint: format!("write it as one of these: {}", Mask::WORDS) }
}

/// A whole number of at least `least`; `4k` is 4096.
fn number(word: &str, number: &str, least: usize) -> Result<usize, WrongMask> {
    let units = [('k', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let unit = units.iter().find_map(|(unit, count)| Some((number.strip_suffix(*unit)?, *count)));
    let (digits, unit) = unit.unwrap_or((number, 1_usize));
    let read = digits.parse().ok().and_then(|digits: usize| digits.checked_mul(unit));
    let Some(read) = read else {
        return Err(wrong(format!("the mask `{word}` needs a number")));
    };
    if (least..MOST).contains(&read) {
        return Ok(read);
    }
    Err(wrong(format!("the mask `{word}` has {read}, expected {least} to {}", MOST - 1)))
}

/// The numbers of a fixed pattern: `7:2`, or `7` for the last column alone.
fn fixed(word: &str, numbers: &str) -> Result<Rule, WrongMask> {
    let (block, columns) = numbers.split_once(':').unwrap_or((numbers, "1"));
    let (block, columns) = (number(word, block, 1)?, number(word, columns, 0)?);
    if columns > block {
        let message = format!("the mask `{word}` has {columns} columns in blocks of {block}");
        return Err(WrongMask { message, hint: format!("at most `fixed:{block}:{block}`") });
    }
    Ok(Rule::Fixed { block, columns })
}

/// A range of positions: `17`, or `0-3`, both ends included.
fn positions(word: &str, range: &str) -> Result<Range<usize>, WrongMask> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(word, first, 0)?, number(word, last, 0)?);
    if first > last {
        let message = format!("the mask `{word}` has positions {first} to {last}");
        return Err(WrongMask { message, hint: String::from("the smaller position comes first") });
    }
    Ok(first..last + 1)
}

impl fmt::Display for WrongMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.hint)
    }
}

impl std::error::Error for WrongMask {}
