//! What runs of a sweep are called: by the last words of their keys, and their values as they were written, so that a list that grows
//! leaves the names of the others as they were.

use annulus_yaml::{Entry, text};

/// Letters of a value in a name.
const LONGEST_VALUE: usize = 40;
/// Letters of a name without the seed: folders have names of up to 255 bytes.
const LONGEST: usize = 180;

/// A short word for each of some keys: its last, or where several have the same last word, all of it.
pub fn short_keys(keys: &[String]) -> Vec<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let word = |key: &String| {
        let alone = keys.iter().filter(|other| last(other) == last(key)).count() == 1;
        if alone { last(key) } else { key.clone() }
    };
    keys.iter().map(word).collect()
}

/// A name for every combination of values for `keys`, no two alike.
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

/// Text as a folder's name can have it on every system: of other letters each run is one `-`.
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
