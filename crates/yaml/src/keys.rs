//! Keys: a name, the accepted values, the meaning of its absence, and a sentence.

use crate::Unit;
use crate::problem::Report;
use crate::source::Span;
use crate::tree::Node;

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name before the colon.
    pub name: &'static str,
    /// The accepted values.
    pub kind: Kind,
    /// The meaning of its absence.
    pub default: Absent,
    /// The meaning, in a sentence without a full stop.
    pub about: &'static str,
}

/// The accepted values of a key.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// Text of one form.
    Form(&'static Only),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Text that names a file or folder: `~` and `${VAR}` in it stand for what the environment says.
    Path,
    /// One of these words, with the way out of others.
    WordOr(&'static [&'static str], fn(&str) -> Option<String>),
    /// `true` or `false`.
    Truth,
    /// A whole number between two bounds.
    Count(u64, u64),
    /// A whole number between two bounds, or this word.
    CountOr(u64, u64, &'static [&'static str; 1]),
    /// A count of tokens or bytes, where `64k` is 65536 and `1M` is 1048576.
    Tokens(u64, u64),
    /// Whole bytes as in `80GB` or `64k`, at least so many.
    Bytes(u64),
    /// A number.
    Real(Interval),
    /// Two numbers.
    Pair(Interval),
    /// A list of numbers.
    Reals(Interval),
    /// A list of some of these words.
    Words(&'static [&'static str]),
    /// A list of whole numbers between two bounds.
    Counts(u64, u64),
    /// A list of counts of tokens up to a bound.
    Sizes(u64),
    /// A list of counts of tokens up to a bound, or this word.
    SizesOr(u64, &'static [&'static str; 1]),
    /// A list of whole numbers up to a bound, and of ranges of them.
    Ranges(u64),
    /// `60`, `60s`, `500ms` or `5m`.
    Seconds,
    /// A number with a unit.
    Quantity(Unit),
    /// Keys of their own, in one or more groups.
    Section(&'static [&'static [Key]]),
    /// Keys of their own, of which some stand for others.
    OneOf(&'static OneOf),
    /// A section of these keys for every name that the user chooses.
    Each(&'static [&'static [Key]]),
    /// A list of sections of these keys; a section of its first key alone may be written as that key's
    /// value, and a list of one as its item.
    Listed(&'static [&'static [Key]]),
    /// Lists of values for other keys, by their dotted names.
    Lists,
    /// Rows of values for other keys, by their dotted names.
    Rows,
}

/// Text of one form.
#[derive(Debug)]
pub struct Only {
    /// The accepted values, in words.
    pub wanted: &'static str,
    /// The form as a regular expression, for editors.
    pub pattern: &'static str,
    /// True for a text of this form.
    pub takes: fn(&str) -> bool,
    /// The way out of a text that does not.
    pub hint: fn(&str) -> Option<String>,
}

/// A section with keys that are always allowed, and others that stand for the first of these.
#[derive(Debug)]
pub struct OneOf {
    /// The keys that are always allowed.
    pub keys: &'static [Key],
    /// The keys that are required where the first of `keys` is absent, and refused beside it.
    pub instead: &'static [&'static [Key]],
    /// Which of both is written in a section at a place; mistakes are reported.
    pub written: fn(&Node, Span, &mut Report) -> Side,
}

impl OneOf {
    /// All groups of keys: those that are always allowed, then those that stand for the first of them.
    pub(crate) fn groups(&self) -> Vec<&'static [Key]> {
        [self.keys].into_iter().chain(self.instead.iter().copied()).collect()
    }
}

impl Kind {
    /// The groups of keys below a key of this kind: of its section, or of each of its sections; empty where it has a value.
    pub(crate) fn below(self) -> Vec<&'static [Key]> {
        match self {
            Kind::Section(groups) | Kind::Each(groups) | Kind::Listed(groups) => groups.to_vec(),
            Kind::OneOf(one) => one.groups(),
            _ => Vec::new(),
        }
    }
}

/// The written side of a [`OneOf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first key.
    First,
    /// The keys that stand for it.
    Instead,
    /// Neither: reported.
    Neither,
}

/// An interval of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// All finite numbers.
    Any,
    /// Above 0.
    AboveZero,
    /// 0 and above.
    AtLeastZero,
    /// 0 to 1, both included.
    ZeroToOne,
    /// 0 to 1 without 1.
    ZeroToBelowOne,
}

/// The meaning of an absent key.
#[derive(Clone, Copy, Debug)]
pub enum Absent {
    /// The key is required.
    Required,
    /// The key is required where the file has no section of this name.
    RequiredWithout(&'static str),
    /// The default, as it would be written.
    Is(&'static str),
    /// A default that follows from other keys, in words.
    Means(&'static str),
}

/// A key; [`section!`](crate::section) calls it.
pub const fn key(name: &'static str, kind: Kind, default: Absent, about: &'static str) -> Key {
    // A field whose name is a word of Rust begins with `r#`.
    let name = match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    };
    Key { name, kind, default, about }
}

/// The path of a key in a section: `data.tokens`.
pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
