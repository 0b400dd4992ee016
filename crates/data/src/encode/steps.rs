//! Where a tokenizer lets a text be cut: what its steps, one by one, may know of the text around a place.
//!
//! A step is known here if it can be shown that what it makes of a text changes nowhere beyond a
//! bounded neighbourhood of a change, but for what [`Cuts::zone`] rules out. A tokenizer with a step
//! that is not known has no [`Cuts`]: it encodes whole documents.
//!
//! | step | looks at |
//! | --- | --- |
//! | added tokens | as many bytes as the longest has, and white space beside it |
//! | normalizers | a character, or what combines with it: nothing across a seam |
//! | splitters of [`PAIRS`] | two neighbouring characters |
//! | splitters of [`RUNS`] | the runs of letters, of numbers, of white space and of all else at the place, and the neighbours of each |
//!
//! The patterns of [`RUNS`] have one thing in common: no match goes on from a letter to what is neither a
//! letter, a mark nor an apostrophe, nor from a number to what is no number. Such a place is an
//! **anchor**: a word ends there whatever stands before and after, so that words are the same on the
//! far side of an anchor however the text begins, and on the near side however it ends.

use regex::Regex;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, normalizers::NFKD};

/// Splitters that put a boundary between two characters by these two alone.
const PAIRS: [&str; 7] = [
    "Metaspace",
    "Whitespace",
    "WhitespaceSplit",
    "BertPreTokenizer",
    "Punctuation",
    "CharDelimiterSplit",
    "Digits",
];

/// Normalizers that look at one character, or at the beginning of a text.
const SINGLE: [&str; 5] = ["StripAccents", "Lowercase", "Nmt", "Prepend", "ByteLevel"];

/// Normalizers that look at a character and what combines with it.
const LOCAL: [&str; 6] = ["BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Precompiled"];

/// The alternatives, in any choice, of the patterns that GPT-2, GPT-4, GPT-4o, Llama 3, Qwen and
/// Mistral split by.
const RUNS: [&str; 25] = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r" ?\p{L}+",
    r" ?\p{N}+",
    r" ?[^\s\p{L}\p{N}]+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
];

/// An anchor: it is behind the first of the two characters.
const ANCHOR: &str = r"[\p{L}\p{N}][^\p{L}\p{N}\p{M}'’]|\p{L}\p{N}|\p{N}\p{L}";

/// Two characters that do not combine, with each other or with anything: no marks, no formats, none of
/// the letters that join the one before (Hangul's) or the one after, nothing beyond the first plane.
const SEAM: &str = r"^[[\x{0}-\x{FFFF}]--[\p{M}\p{Cf}\p{Co}\p{Cn}\r\x{1100}-\x{11FF}\x{A960}-\x{A97F}\x{D7B0}-\x{D7FF}\x{D4E}]]{2}$";

/// One word to every pattern of [`RUNS`], wherever it begins and ends: letters of one case, or of none.
const LETTERS: &str = r"^(?:[a-z]+|[A-Z]+|[\x{4E00}-\x{9FFF}]+)$";

/// Where texts can be cut for a tokenizer.
#[derive(Debug)]
pub(crate) struct Cuts {
    /// Bytes on either side of a place that added tokens can span.
    reach: usize,
    /// Characters after which a rewritten text has no seam; none: it is not rewritten.
    rewritten: Option<Vec<char>>,
    /// Whether a splitter looks at runs.
    runs: bool,
    anchor: Regex,
    seam: Regex,
    letters: Regex,
}

impl Cuts {
    /// The longest added token that is provided for, in bytes.
    const LONGEST: usize = 256;

    /// What the steps of `tokenizer` allow; else which of them is not known.
    pub(crate) fn new(
        tokenizer: &tokenizers::Tokenizer,
    ) -> tokenizers::Result<Result<Cuts, String>> {
        let normalizer = serde_json::to_value(tokenizer.get_normalizer())?;
        let splitter = serde_json::to_value(tokenizer.get_pre_tokenizer())?;
        let added = tokenizer.get_added_tokens_decoder();
        let longest = added.values().map(|token| token.content.len()).max().unwrap_or(0);
        if longest > Cuts::LONGEST {
            return Ok(Err(format!("an added token of {longest} bytes")));
        }
        let mut rewritten = None;
        let mut runs = false;
        let known = steps(&normalizer, "normalizers")
            .try_for_each(|step| rewrites(step, &mut rewritten))
            .and_then(|()| {
                steps(&splitter, "pretokenizers").try_for_each(|step| splits(step, &mut runs))
            });
        if let Err(unknown) = known {
            return Ok(Err(unknown));
        }
        // Up to three bytes become one: letters of full width.
        let reach = longest * if rewritten.is_some() { 3 } else { 1 } + 8;
        let (anchor, seam, letters) =
            (Regex::new(ANCHOR)?, Regex::new(SEAM)?, Regex::new(LETTERS)?);
        Ok(Ok(Cuts { reach, rewritten, runs, anchor, seam, letters }))
    }

    /// The places of `overlap` at which words are the same in the whole text, in a piece that ends
    /// with the overlap, and in one that begins with it. `aligned`: a word begins with it.
    pub(crate) fn zone(&self, overlap: &str, aligned: bool) -> Option<(usize, usize)> {
        let all = (self.reach, overlap.len().checked_sub(self.reach)?);
        if !self.runs || self.letters.is_match(overlap) {
            return Some(all);
        }
        if overlap.bytes().all(|byte| byte.is_ascii_digit()) {
            // Groups of three from a boundary on; without a boundary all are one word.
            return aligned.then_some(all);
        }
        let mut anchors = self.anchor.find_iter(overlap).filter_map(|found| {
            let first = found.as_str().chars().next()?.len_utf8();
            let place = found.start() + first;
            self.seam(overlap, place).then_some(place)
        });
        let first = anchors.next()?;
        let last = anchors.last()?;
        Some((first.max(all.0), last.min(all.1)))
    }

    /// Whether `text` is rewritten before `place` and after it each by itself.
    pub(crate) fn seam(&self, text: &str, place: usize) -> bool {
        if !text.is_char_boundary(place) {
            return false;
        }
        let Some(swallowed) = &self.rewritten else { return true };
        let (before, after) = text.split_at(place);
        let (Some(before), Some(after)) = (before.chars().next_back(), after.chars().next()) else {
            return false;
        };
        let both = String::from_iter([before, after]);
        !swallowed.contains(&before) && self.seam.is_match(&both) && plain(&both)
    }
}

/// Whether no Unicode form writes `text` otherwise.
fn plain(text: &str) -> bool {
    let mut normalized = NormalizedString::from(text);
    NFKD.normalize(&mut normalized).is_ok() && normalized.get() == text
}

/// The steps of a sequence, flattened.
fn steps<'v>(step: &'v Value, list: &'static str) -> Box<dyn Iterator<Item = &'v Value> + 'v> {
    match step.get(list).and_then(Value::as_array) {
        Some(inner) => Box::new(inner.iter().flat_map(move |step| steps(step, list))),
        None => Box::new((!step.is_null()).then_some(step).into_iter()),
    }
}

fn rewrites(step: &Value, rewritten: &mut Option<Vec<char>>) -> Result<(), String> {
    let mut swallow = |letters: &str| rewritten.get_or_insert_default().extend(letters.chars());
    match step["type"].as_str().unwrap_or_default() {
        "Replace" => {
            let pattern = &step["pattern"];
            match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                (Some(pattern), _) if pattern.chars().count() == 1 => {}
                // No match reaches beyond a character that it cannot hold.
                (Some(pattern), _) => swallow(pattern),
                (None, Some(" {2,}")) => swallow(" "),
                _ => return Err(format!("the normalizer `Replace` of {pattern}")),
            }
        }
        // White space at the ends of a text, and beside added tokens.
        "Strip" => swallow(" \t\n\u{b}\u{c}\u{85}\u{a0}"),
        name if SINGLE.contains(&name) => {}
        name if LOCAL.contains(&name) => swallow(""),
        name => return Err(format!("the normalizer `{name}`")),
    }
    Ok(())
}

fn splits(step: &Value, runs: &mut bool) -> Result<(), String> {
    match step["type"].as_str().unwrap_or_default() {
        "ByteLevel" => *runs |= step["use_regex"] != Value::Bool(false),
        "Split" => {
            let (behavior, invert) = (step["behavior"].as_str(), step["invert"].as_bool());
            let pattern = step["pattern"]["Regex"].as_str().unwrap_or_default();
            let every = matches!(
                (behavior, invert),
                (Some("Isolated"), Some(false)) | (Some("Removed"), Some(true))
            );
            if !(every && covers(pattern)) {
                let pattern = &step["pattern"];
                return Err(format!("the splitter `Split` of {pattern}"));
            }
            *runs = true;
        }
        name if PAIRS.contains(&name) => {}
        name => return Err(format!("the splitter `{name}`")),
    }
    Ok(())
}

/// Whether `pattern` is made of [`RUNS`], with a match at every character: letters, numbers, white space
/// and the rest.
fn covers(pattern: &str) -> bool {
    let mut parts = alternatives(pattern);
    let found = |end: &str| alternatives(pattern).any(|part| part.ends_with(end));
    parts.all(|part| RUNS.contains(&part))
        && (found(r"\p{L}+") || found(r"\p{M}]+") || pattern.contains(r"\p{Lo}\p{M}]+"))
        && alternatives(pattern).any(|part| part.contains(r"\p{N}") && !part.contains("[^"))
        && alternatives(pattern).any(|part| part.contains(r"[^\s\p{L}\p{N}]+"))
        && alternatives(pattern).any(|part| part == r"\s+")
}

/// The alternatives of a pattern, at its outermost level.
fn alternatives(pattern: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    pattern.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == '|' && depth == 0
    })
}
