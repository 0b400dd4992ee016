//! Typed values by path, as an experiment's fields ask for them.
//!
//! Every question answers `None` where the value is missing or was refused, so that what cannot be
//! built is not built.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::source::Span;
use crate::typed::Typed;

/// Values by path (`data.tokens`), with defaults filled in.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(crate) typed: BTreeMap<String, Typed>,
    /// Where keys were written: a value's span, a section's key.
    pub(crate) spans: BTreeMap<String, Span>,
    /// Keys whose value was missing or wrong.
    pub(crate) refused: BTreeSet<String>,
    /// The free words under a section, by its path.
    pub(crate) free: BTreeMap<String, Vec<String>>,
}

impl Values {
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.typed.get(key)? {
            Typed::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn word<T>(&self, key: &str, from_word: impl Fn(&str) -> Option<T>) -> Option<T> {
        from_word(self.text(key)?)
    }

    pub(crate) fn truth(&self, key: &str) -> Option<bool> {
        match self.typed.get(key)? {
            Typed::Truth(truth) => Some(*truth),
            _ => None,
        }
    }

    pub(crate) fn count(&self, key: &str) -> Option<u64> {
        match self.typed.get(key)? {
            Typed::Count(count) => Some(*count),
            _ => None,
        }
    }

    pub(crate) fn size(&self, key: &str) -> Option<usize> {
        usize::try_from(self.count(key)?).ok()
    }

    pub(crate) fn real(&self, key: &str) -> Option<f64> {
        match self.typed.get(key)? {
            Typed::Real(real) => Some(*real),
            _ => None,
        }
    }

    pub(crate) fn pair(&self, key: &str) -> Option<(f64, f64)> {
        match self.typed.get(key)? {
            Typed::Pair(first, second) => Some((*first, *second)),
            _ => None,
        }
    }

    pub(crate) fn reals(&self, key: &str) -> Option<Vec<f64>> {
        match self.typed.get(key)? {
            Typed::Reals(reals) => Some(reals.clone()),
            _ => None,
        }
    }

    /// A list of words, each of which means something.
    pub(crate) fn words<T>(
        &self,
        key: &str,
        from_word: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        match self.typed.get(key)? {
            Typed::Words(words) => words.iter().map(|word| from_word(word)).collect(),
            _ => None,
        }
    }

    pub(crate) fn sizes(&self, key: &str) -> Option<Vec<usize>> {
        match self.typed.get(key)? {
            Typed::Counts(counts) => {
                counts.iter().map(|count| usize::try_from(*count).ok()).collect()
            }
            _ => None,
        }
    }

    /// Half-open.
    pub(crate) fn ranges(&self, key: &str) -> Option<Vec<Range<usize>>> {
        let size = |number: u64| usize::try_from(number).ok();
        match self.typed.get(key)? {
            Typed::Ranges(ranges) => ranges
                .iter()
                .map(|(first, last)| Some(size(*first)?..size(last.checked_add(1)?)?))
                .collect(),
            _ => None,
        }
    }

    pub(crate) fn seconds(&self, key: &str) -> Option<Duration> {
        match self.typed.get(key)? {
            Typed::Seconds(seconds) => Some(*seconds),
            _ => None,
        }
    }

    /// A key that may be absent: `Some(None)` then, `None` where its value was refused.
    #[expect(clippy::option_option, reason = "refused and absent are two things")]
    pub(crate) fn optional<'a, T>(
        &'a self,
        key: &'a str,
        read: impl Fn(&'a Values, &'a str) -> Option<T>,
    ) -> Option<Option<T>> {
        (!self.refused.contains(key)).then(|| read(self, key))
    }
}
