//! Words and numbers as they are written: `64k`, `3e-4`, `1_000`, `60s`.

use std::time::Duration;

use crate::elsewhere::value_elsewhere;
use crate::keys::{Interval, Key, Kind};
use crate::lists::{Lists, Rows};
use crate::path;
use crate::quantity::Unit;
use crate::source::Span;
use crate::tree::{Node, Value};
use crate::values::Typed;

/// Why a value is not of its key's type.
pub(crate) struct Mismatch {
    /// The accepted values, in words.
    pub wanted: String,
    pub hint: Option<String>,
    /// The item of a list that is wrong, if one is.
    pub item: Option<(Span, String)>,
}

impl Interval {
    pub(crate) fn contains(self, value: f64) -> bool {
        match self {
            Interval::Any => value.is_finite(),
            Interval::AboveZero => value.is_finite() && value > 0.0,
            Interval::AtLeastZero => value.is_finite() && value >= 0.0,
            Interval::ZeroToOne => (0.0..=1.0).contains(&value),
            Interval::ZeroToBelowOne => (0.0..1.0).contains(&value),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Interval::Any => "",
            Interval::AboveZero => " above 0",
            Interval::AtLeastZero => " of at least 0",
            Interval::ZeroToOne => " from 0 to 1",
            Interval::ZeroToBelowOne => " from 0 to below 1",
        }
    }
}

impl Kind {
    /// The accepted values, in words.
    pub(crate) fn wanted(self) -> String {
        match self {
            Kind::Text => String::from("text"),
            Kind::Path => String::from("a path"),
            Kind::Form(form) => String::from(form.wanted),
            Kind::Word([only]) => format!("`{only}`"),
            Kind::Word(words) | Kind::WordOr(words, _) => {
                format!("one of `{}`", words.join("`, `"))
            }
            Kind::Truth => String::from("`true` or `false`"),
            Kind::Count(least, u64::MAX) => format!("a whole number of at least {least}"),
            Kind::Count(least, most) => format!("a whole number from {least} to {most}"),
            Kind::CountOr(least, most, [word]) => {
                format!("a whole number from {least} to {most}, or `{word}`")
            }
            Kind::Tokens(least, most) => {
                format!("{}, from {least} to {most}", Unit::Tokens.wanted())
            }
            Kind::Bytes(_) => String::from(Unit::Bytes.wanted()),
            Kind::Real(interval) => format!("a number{}", interval.words()),
            Kind::Pair(interval) => format!("a list of two numbers{}", interval.words()),
            Kind::Counts(least, most) => {
                format!("a list of whole numbers from {least} to {most}")
            }
            Kind::Sizes(_) => String::from("a list of lengths such as `[1000, 4k]`"),
            Kind::SizesOr(_, [word]) => {
                format!("a list of lengths such as `[1000, 4k]`, or `{word}`")
            }
            Kind::Ranges(_) => String::from("a list of numbers and ranges such as `[1-63, 1000]`"),
            Kind::Reals(interval) => format!("a list of numbers{}", interval.words()),
            Kind::Words(words) => format!("a list of `{}`", words.join("`, `")),
            Kind::Seconds => String::from("a time such as `60s`, above 0"),
            Kind::Quantity(unit) => String::from(unit.wanted()),
            Kind::Section(_) | Kind::OneOf(_) | Kind::Each(_) => String::from("a mapping of keys"),
            Kind::Listed(groups) => listed(groups),
            Kind::Lists => String::from(Lists::WANTED),
            Kind::Rows => String::from(Rows::WANTED),
        }
    }

    /// Reads `node` as this kind.
    pub(crate) fn read(self, node: &Node) -> Result<Typed, Mismatch> {
        let mismatch = |hint: Option<String>| Mismatch { wanted: self.wanted(), hint, item: None };
        let wrong = |item: &Node| {
            let item = Some((item.span, item.value.found()));
            Mismatch { item, ..mismatch(None) }
        };
        match (self, &node.value) {
            (Kind::Pair(interval), Value::Sequence(items)) => {
                pair(items, interval).map_err(|item| item.map_or_else(|| mismatch(None), wrong))
            }
            (Kind::Counts(least, most), Value::Sequence(items)) => {
                let count = |text: &str| Kind::Count(least, most).count(text);
                scalars(items, count).map(Typed::Counts).map_err(wrong)
            }
            (Kind::Sizes(most) | Kind::SizesOr(most, _), Value::Sequence(items)) => {
                let count = |text: &str| Kind::Tokens(1, most).count(text);
                scalars(items, count).map(Typed::Counts).map_err(wrong)
            }
            (Kind::Reals(interval), Value::Sequence(items)) => {
                let number = |text: &str| real(text).filter(|&value| interval.contains(value));
                scalars(items, number).map(Typed::Reals).map_err(wrong)
            }
            (Kind::Words(words), Value::Sequence(items)) => {
                let hint = |item: &Node| Kind::Word(words).hint_at(item);
                let wrong = |item: &Node| Mismatch { hint: hint(item), ..wrong(item) };
                listed_words(items, words).map(Typed::Words).map_err(wrong)
            }
            (Kind::Lists, _) => Lists::read(node),
            (Kind::Rows, _) => Rows::read(node),
            (Kind::Ranges(most), Value::Sequence(items)) => {
                scalars(items, |text| range(text, most)).map(Typed::Ranges).map_err(wrong)
            }
            (_, Value::Scalar { text, quoted }) => {
                let typed = if *quoted && !self.takes_text() { None } else { self.parse(text) };
                typed.ok_or_else(|| mismatch(self.hint(text, *quoted)))
            }
            _ => Err(mismatch(None)),
        }
    }

    /// Reads a default of the table.
    pub(crate) fn default(self, text: &str) -> Option<Typed> {
        match self {
            Kind::Pair(_) => {
                let (first, second) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(',')?;
                Some(Typed::Pair(real(first.trim())?, real(second.trim())?))
            }
            kind => kind.parse(text),
        }
    }

    fn takes_text(self) -> bool {
        matches!(
            self,
            Kind::Text
                | Kind::Path
                | Kind::Form(_)
                | Kind::Word(_)
                | Kind::WordOr(..)
                | Kind::SizesOr(..)
                | Kind::CountOr(..)
        )
    }

    /// Reads a scalar.
    fn parse(self, text: &str) -> Option<Typed> {
        match self {
            Kind::Text => {
                (!text.is_empty() && !text.contains('\0')).then(|| Typed::Text(text.to_owned()))
            }
            Kind::Path => path::expanded(text).ok().map(Typed::Text),
            Kind::Form(form) => (form.takes)(text).then(|| Typed::Text(text.to_owned())),
            Kind::Word(words) | Kind::WordOr(words, _) => {
                words.contains(&text).then(|| Typed::Text(text.to_owned()))
            }
            Kind::Truth => text.parse().ok().map(Typed::Truth),
            Kind::Count(..) | Kind::Tokens(..) | Kind::Bytes(_) => {
                self.count(text).map(Typed::Count)
            }
            Kind::CountOr(least, most, word) => {
                let word = || word.contains(&text).then(|| Typed::Text(text.to_owned()));
                Kind::Count(least, most).count(text).map(Typed::Count).or_else(word)
            }
            Kind::SizesOr(_, word) => word.contains(&text).then(|| Typed::Text(text.to_owned())),
            Kind::Real(interval) => {
                real(text).filter(|&value| interval.contains(value)).map(Typed::Real)
            }
            Kind::Seconds => seconds(text).map(Typed::Seconds),
            Kind::Quantity(unit) => unit.parse(text).map(Typed::Real),
            // Lists and sections.
            _ => None,
        }
    }

    /// Reads a number of the kinds that count.
    fn count(self, text: &str) -> Option<u64> {
        let (number, least, most) = match self {
            Kind::Count(least, most) => (whole(text), least, most),
            Kind::Tokens(least, most) => (Unit::Tokens.count(text), least, most),
            Kind::Bytes(least) => (Unit::Bytes.count(text), least, u64::MAX),
            _ => return None,
        };
        number.filter(|number| (least..=most).contains(number))
    }

    /// The way out of a value that is nearly right.
    fn hint(self, text: &str, quoted: bool) -> Option<String> {
        if quoted && !self.takes_text() {
            return self.parse(text).map(|_| format!("write {text} without quotes"));
        }
        match self {
            Kind::SizesOr(_, word) | Kind::CountOr(_, _, word) => {
                nearest(text, word).map(|word| format!("did you mean `{word}`?"))
            }
            Kind::Word(words) => value_elsewhere(text, words)
                .or_else(|| nearest(text, words))
                .map(|word| format!("did you mean `{word}`?")),
            Kind::Tokens(..) => self.in_digits(text).or_else(|| tokens_hint(text)),
            Kind::Bytes(_) => Unit::Bytes.hint(text),
            Kind::Seconds => Unit::Time.hint(text),
            Kind::WordOr(words, hint) => {
                hint(text).or_else(|| Kind::Word(words).hint(text, quoted))
            }
            Kind::Path => path::expanded(text).err(),
            Kind::Form(form) => (form.hint)(text),
            Kind::Count(..) if real(text).is_none() && Unit::Tokens.parse(text).is_some() => {
                Some(String::from(
                    "`k`, `M` and `G` count tokens and bytes: write the whole number out here",
                ))
            }
            Kind::Count(..) => self.in_digits(text),
            Kind::Truth => truth(text).map(|word| format!("write `{word}`")),
            Kind::Pair(_) => Some(String::from("write two, such as `[0.9, 0.95]`")),
            _ if self.is_list_of(text) => Some(format!("write `[{text}]`")),
            Kind::Quantity(unit) => unit.hint(text),
            _ => None,
        }
    }

    /// [`Kind::hint`] of an item of a list.
    fn hint_at(self, item: &Node) -> Option<String> {
        match &item.value {
            Value::Scalar { text, quoted } => self.hint(text, *quoted),
            _ => None,
        }
    }

    /// A count that is written as `1e6`, or with commas, in plain digits.
    fn in_digits(self, text: &str) -> Option<String> {
        let plain = text.replace(',', "");
        let number = real(&plain).filter(|number| number.fract() == 0.0)?;
        let digits = format!("{number:.0}");
        (digits != text && self.count(&digits).is_some()).then(|| format!("write {digits}"))
    }

    /// Whether this is a list, and `text` could be its only item.
    fn is_list_of(self, text: &str) -> bool {
        let item = Value::Scalar { text: text.to_owned(), quoted: false };
        let span = Span { source: 0, start: 0, end: 0 };
        let list = Node { value: Value::Sequence(vec![Node { value: item, span }]), span };
        let lists = matches!(
            self,
            Kind::Counts(..) | Kind::Sizes(_) | Kind::Reals(_) | Kind::Ranges(_) | Kind::Words(_)
        );
        lists && self.read(&list).is_ok()
    }
}

/// The word that a user of other files means: `yes`.
fn truth(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "yes" | "on" | "y" | "1" | "true" => Some(true),
        "no" | "off" | "n" | "0" | "false" => Some(false),
        _ => None,
    }
}

/// The way out of what is nearly a count of tokens: `64KB`, or a part of a token.
fn tokens_hint(text: &str) -> Option<String> {
    if let Some(count) = Unit::Tokens.parse(text).filter(|count| count.fract() != 0.0) {
        return Some(format!("that is {count} tokens: {} are a whole number", count.round()));
    }
    let number = |letter: &char| letter.is_ascii_digit() || *letter == '.';
    let digits: String = text.chars().take_while(number).collect();
    let unit = text[digits.len()..].trim().chars().next()?.to_ascii_lowercase();
    let suffix = if unit == 'k' { "k".to_owned() } else { unit.to_ascii_uppercase().to_string() };
    let written = digits + &suffix;
    Unit::Tokens.count(&written).map(|count| format!("`{written}` is {count} tokens"))
}

/// What a list of sections takes, in words.
fn listed(groups: &[&[Key]]) -> String {
    let keys = || groups.iter().copied().flatten();
    let first = keys().next().map_or_else(String::new, |key| key.kind.wanted());
    let names = keys().map(|key| key.name).collect::<Vec<_>>().join("`, `");
    let one = first.strip_prefix("a ").unwrap_or(&first);
    format!("{first}, or a list of {one}s and of mappings with the keys `{names}`")
}

/// The word of `words` that `text` probably means.
pub fn nearest<'a>(text: &str, words: &[&'a str]) -> Option<&'a str> {
    const LONGEST: usize = 64;
    if text.len() > LONGEST {
        return None;
    }
    let text = text.to_lowercase();
    let distance = |word: &&str| strsim::damerau_levenshtein(&text, word);
    let (word, distance) = words.iter().map(|word| (*word, distance(word))).min_by_key(|d| d.1)?;
    (distance <= (word.len() / 3).max(1)).then_some(word)
}

/// Two numbers; else the one that is wrong, or none where there are not two.
fn pair(items: &[Node], interval: Interval) -> Result<Typed, Option<&Node>> {
    let [first, second] = items else { return Err(None) };
    let number = |item| match Kind::Real(interval).read(item) {
        Ok(Typed::Real(number)) => Ok(number),
        _ => Err(Some(item)),
    };
    Ok(Typed::Pair(number(first)?, number(second)?))
}

/// The items of a list, all of them of `words`, or the first that is not.
fn listed_words<'a>(items: &'a [Node], words: &[&str]) -> Result<Vec<String>, &'a Node> {
    let word = |item: &'a Node| words.iter().find(|word| item.value.is_word(word)).ok_or(item);
    items.iter().map(|item| word(item).map(|word| String::from(*word))).collect()
}

/// The items of a list, all read by `read`, or the first that cannot be.
fn scalars<'a, T>(items: &'a [Node], read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, &'a Node> {
    let one = |item: &'a Node| match &item.value {
        Value::Scalar { text, quoted: false } => read(text).ok_or(item),
        _ => Err(item),
    };
    items.iter().map(one).collect()
}

/// `5` or `0-63`: the first and the last.
fn range(text: &str, most: u64) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (whole(first)?, whole(last)?);
    (first <= last && last <= most).then_some((first, last))
}

/// Digits with `_` between them.
fn digits(text: &str) -> Option<String> {
    let inside = text.starts_with(|c: char| c.is_ascii_digit()) && !text.ends_with('_');
    let plain = text.chars().all(|letter| letter.is_ascii_digit() || letter == '_');
    (inside && plain).then(|| text.replace('_', ""))
}

pub(crate) fn whole(text: &str) -> Option<u64> {
    digits(text)?.parse().ok()
}

pub(crate) fn real(text: &str) -> Option<f64> {
    let number = |letter: char| letter.is_ascii_digit() || "+-.eE_".contains(letter);
    let edges = text.starts_with('_') || text.ends_with('_');
    if edges || !text.chars().all(number) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// A time above 0, of up to thirty years.
fn seconds(text: &str) -> Option<Duration> {
    const LONGEST: f64 = 1e9;
    let seconds = Unit::Time.parse(text)?;
    (seconds > 0.0 && seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds))
}
