//! Typed values by path: those of a file, and the defaults of absent keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::source::Span;
use crate::tree::Entry;

/// A value of the type that its key takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Typed {
    /// A word, a path.
    Text(String),
    /// `true` or `false`.
    Truth(bool),
    /// A whole number.
    Count(u64),
    /// A number.
    Real(f64),
    /// Two numbers.
    Pair(f64, f64),
    /// Whole numbers.
    Counts(Vec<u64>),
    /// A list of numbers.
    Reals(Vec<f64>),
    /// A list of words.
    Words(Vec<String>),
    /// From the first to the last, both included.
    Ranges(Vec<(u64, u64)>),
    /// A time.
    Seconds(Duration),
    /// Lists of values for other keys.
    Lists(Vec<Entry>),
    /// Rows of values for other keys.
    Rows(Vec<Vec<Entry>>),
}

/// Values by path (`data.tokens`), with defaults filled in.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Values of keys.
    pub typed: BTreeMap<String, Typed>,
    /// Places of written keys: a value's span, a section's key.
    pub spans: BTreeMap<String, Span>,
    /// Keys whose value was missing or wrong.
    pub refused: BTreeSet<String>,
    /// The names that the user chose in a section, by its path.
    pub free: BTreeMap<String, Vec<String>>,
}

impl Values {
    /// True for a key or a section that is written, and not left to its default.
    pub fn is_written(&self, path: &str) -> bool {
        self.spans.contains_key(path)
    }
}
