//! Names of a sweep's runs: the last words of their keys with the values as written, so that a longer list leaves the other runs' names as
//! they were.

use annulus_yaml::{Entry, text};

/// The most letters of a value in a name.
const LONGEST_VALUE: usize = 40;
/// The most letters of a name without its seed: a folder's name may have 255 bytes.
const LONGEST: usize = 180;

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
        let values = point.iter().map(|entry| plain(&text(&entry.value)));
        let parts = words.iter().zip(values).map(|(word, value)| format!("{word}={value}"));
        let name: String = parts.collect::<Vec<_>>().join(",").chars().take(LONGEST).collect();
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        names.push(free.unwrap_or(name));
    }
    names
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
}
