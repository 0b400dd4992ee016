//! Names of a sweep's runs: the last words of their keys with the values as written. A run's name depends on its own values alone, so that
//! the same run has the same folder in a longer list, and in one of another order.

use annulus_yaml::{Entry, text};

/// The most letters of a value in a name.
const LONGEST_VALUE: usize = 40;
/// The most letters of a name without its seed: a folder's name may have 255 bytes.
const LONGEST: usize = 180;
/// The letters of the hash that stands for what a name cannot have.
const HASH: usize = 8;

/// A short word for each key: its last word, or the whole key where several share their last word.
pub fn short_keys(keys: &[String]) -> Vec<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let word = |key: &String| {
        let alone = keys.iter().filter(|other| last(other) == last(key)).count() == 1;
        if alone { last(key) } else { key.clone() }
    };
    keys.iter().map(word).collect()
}

/// Distinct names for all combinations of values for `keys`.
pub(crate) fn names(keys: &[String], points: &[Vec<Entry>]) -> Vec<String> {
    let words: Vec<String> = short_keys(keys).iter().map(|word| plain(word)).collect();
    let mut names: Vec<String> = Vec::new();
    for point in points {
        let values = point.iter().map(|entry| shown(&text(&entry.value)));
        let parts = words.iter().zip(values).map(|(word, value)| format!("{word}={value}"));
        let name = cut(&parts.collect::<Vec<_>>().join(","), LONGEST);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        names.push(free.unwrap_or(name));
    }
    names
}

/// A value in a name, followed by a hash of it unless the name has all that tells it from others: the path `a/b` is not `a-b`.
fn shown(value: &str) -> String {
    let shown = plain(value);
    if shown == value || is_of_numbers(value) { shown } else { format!("{shown}-{}", hash(value)) }
}

/// Whether a value is a list of numbers, which are told apart without brackets, or in quotes a text that would be itself without them.
fn is_of_numbers(value: &str) -> bool {
    let within = |first, last| value.strip_prefix(first)?.strip_suffix(last);
    let is_number = |item: &str| {
        let digit = |letter: char| letter.is_ascii_digit();
        item.starts_with(digit) && plain(item) == item
    };
    let items: Option<&str> = within('[', ']');
    let text: Option<&str> = within('"', '"');
    let are_numbers = items.is_some_and(|items| items.split(", ").all(is_number));
    value.chars().count() <= LONGEST_VALUE
        && (are_numbers || text.is_some_and(|text| plain(text) == text))
}

/// A name of at most so many letters: the end of a longer one is a hash of it.
fn cut(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest {
        return name.to_owned();
    }
    let begin: String = name.chars().take(longest - HASH - 1).collect();
    format!("{begin}-{}", hash(name))
}

/// The first letters of a text's hash.
fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..HASH].to_owned()
}

/// Text as a folder's name may have it on every system: runs of other letters become one `-`.
fn plain(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars() {
        match letter {
            letter if letter.is_ascii_alphanumeric() || "-_.+".contains(letter) => {
                shown.push(letter);
            }
            _ if !shown.is_empty() && !shown.ends_with('-') => shown.push('-'),
            _ => {}
        }
    }
    shown.trim_end_matches('-').chars().take(LONGEST_VALUE).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_key_is_named_by_its_last_word_where_no_other_has_it() {
        let keys = ["data.tokens", "extend.tokens", "attention.strategy"].map(str::to_owned);
        assert_eq!(short_keys(&keys), ["data.tokens", "extend.tokens", "strategy"]);
    }

    #[test]
    fn names_have_letters_that_every_shell_and_file_system_takes() {
        assert_eq!(plain("[{ path: /books/a b.txt }]"), "path-books-a-b.txt");
        assert_eq!(plain("3e-4"), "3e-4");
        assert_eq!(plain("../../etc"), "..-..-etc");
    }

    #[test]
    fn what_a_name_cannot_have_is_told_apart_by_a_hash() {
        for value in ["ring", "3e-4", "1k", "h-x.txt"] {
            assert_eq!(shown(value), value);
        }
        assert_eq!(shown("[0.9, 0.95]"), "0.9-0.95");
        assert_eq!(shown("\"3\""), "3");
        let long = |last: &str| format!("/a/path/of/more/than/forty/letters/in/all/{last}");
        let alike = ["h/x.txt", "h x.txt", "/h/x.txt", "[h, x.txt]", &long("a"), &long("b")];
        let all: BTreeSet<String> =
            alike.into_iter().map(shown).chain(["h-x.txt".into()]).collect();
        assert_eq!(all.len(), alike.len() + 1, "{all:?}");
        assert!(all.iter().all(|name| name.len() <= LONGEST_VALUE + HASH + 1), "{all:?}");
        let names = ["a", "b"].map(|last| cut(&("x".repeat(LONGEST) + last), LONGEST));
        assert!(names[0] != names[1] && names[0].len() == LONGEST, "{names:?}");
    }
}
