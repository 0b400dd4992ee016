//! Keys whose values differ, each with both values.

use std::fmt;

use crate::Experiment;

/// The word for the value of an absent key.
const ABSENT: &str = "nothing";

/// A key with another value than it had; one of the values may be absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDifference {
    /// The key's path.
    pub key: String,
    /// The value that it had; `None`: the key was absent.
    pub was: Option<String>,
    /// The value that it has; `None`: the key is absent.
    pub is: Option<String>,
}

impl KeyDifference {
    /// The keys whose values in `was` and `is` differ, in the order of `is`, then those that only `was` has. Both are pairs of a key and its
    /// value, each key once.
    pub fn between<'a>(
        was: impl IntoIterator<Item = (&'a String, &'a String)>,
        is: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Vec<KeyDifference> {
        let [was, is]: [Vec<_>; 2] = [was.into_iter().collect(), is.into_iter().collect()];
        let find = |all: &[(&String, &String)], key: &String| {
            all.iter().find(|(other, _)| *other == key).map(|(_, value)| (*value).clone())
        };
        let gone = was.iter().filter(|(key, _)| is.iter().all(|(other, _)| other != key));
        let of_key = |key: &String| KeyDifference {
            key: key.clone(),
            was: find(&was, key),
            is: find(&is, key),
        };
        let all = is.iter().chain(gone).map(|(key, _)| of_key(key));
        all.filter(|one| one.was != one.is).collect()
    }

    /// The value that the key had, as text.
    pub fn was(&self) -> &str {
        value_text(self.was.as_deref())
    }

    /// The value that the key has, as text.
    pub fn is(&self) -> &str {
        value_text(self.is.as_deref())
    }
}

impl fmt::Display for KeyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` was `{}` and is `{}`", self.key, self.was(), self.is())
    }
}

/// A value as text; that of an absent key is `nothing`.
pub fn value_text(value: Option<&str>) -> &str {
    value.unwrap_or(ABSENT)
}

/// The keys of [`Experiment::identity`] in which `is` differs from `was`.
pub fn differences(was: &Experiment, is: &Experiment) -> Vec<KeyDifference> {
    let [was, is] = [was.identity(), is.identity()];
    let [was, is] = [&was, &is].map(|lines| lines.iter().map(|(key, value)| (key, value)));
    KeyDifference::between(was, is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_absent_are_none_and_shown_as_nothing() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let was = pairs(&[("gone", "1"), ("same", "2"), ("word", "nothing")]);
        let is = pairs(&[("word", "3"), ("same", "2"), ("new", "4")]);
        let [was, is] = [&was, &is].map(|all| all.iter().map(|(key, value)| (key, value)));
        let found = KeyDifference::between(was, is);
        let absent: Vec<bool> = found.iter().map(|one| one.was.is_none()).collect();
        assert_eq!(absent, [false, true, false]);
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        let wanted = [
            "`word` was `nothing` and is `3`",
            "`new` was `nothing` and is `4`",
            "`gone` was `1` and is `nothing`",
        ];
        assert_eq!(said, wanted);
    }
}
