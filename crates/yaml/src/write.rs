//! Sections as text again: one line per key.

use std::ops::Range;

use crate::path::literal;

/// The path of a key, section by section; names that the user chooses may have dots in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// The path of `key` below this one.
    #[must_use]
    pub fn to(&self, key: &str) -> Path {
        Path(self.0.iter().cloned().chain([key.to_owned()]).collect())
    }

    /// The path as one word: `data.tokens`.
    pub fn dotted(&self) -> String {
        self.0.join(".")
    }
}

/// Keys and their values, in order.
#[derive(Clone, Debug, Default)]
pub struct Lines(Vec<(Path, String)>);

impl Lines {
    /// Adds a key and the text of its value.
    pub fn push(&mut self, path: &Path, value: String) {
        self.0.push((path.clone(), value));
    }

    /// Every key and its value.
    pub fn iter(&self) -> impl Iterator<Item = (String, &str)> {
        self.0.iter().map(|(path, value)| (path.dotted(), value.as_str()))
    }

    /// The text of the file.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        let mut open: &[String] = &[];
        for (Path(path), value) in &self.0 {
            let (key, sections) = path.split_last().unwrap_or((value, &[]));
            let shared = open.iter().zip(sections).take_while(|(open, own)| open == own).count();
            if shared == 0 && (!sections.is_empty() || !open.is_empty()) {
                text.push('\n');
            }
            for (depth, section) in sections.iter().enumerate().skip(shared) {
                text.extend(["  ".repeat(depth), quoted(section), String::from(":\n")]);
            }
            text.extend([&"  ".repeat(sections.len()), &quoted(key), ": ", value, "\n"]);
            open = sections;
        }
        text
    }
}

/// The shortest text that reads back as the same number, here and by readers of YAML 1.1: `1.0e-5`,
/// where `1e-5` is text.
pub fn real(value: f64) -> String {
    let text = format!("{value:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{digits}{point}e{sign}{exponent}")
}

/// Numbers and ranges of them, both ends included: `[0-63, 1000]`.
pub fn ranges(ranges: &[Range<usize>]) -> String {
    list(ranges.iter().map(|range| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    }))
}

/// A list on one line.
pub fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

/// Text as it stands where YAML reads it as such, else in quotes: JSON's are YAML's.
pub fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./+".contains(letter);
    let word = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/');
    let nothing = text.eq_ignore_ascii_case("null");
    if word && !nothing && text.chars().all(plain) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string().chars().map(escaped).collect()
    }
}

/// A path as YAML that is read as exactly this path, whatever is in its name.
pub fn quoted_path(path: &std::path::Path) -> String {
    quoted(&literal(&path.to_string_lossy()))
}

/// A character of a text in quotes, as JSON's escape where a file of YAML may not hold it as it is (YAML 1.2, 5.1), or
/// would break the line there (YAML 1.1).
fn escaped(letter: char) -> String {
    match letter {
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
            format!("\\u{:04x}", u32::from(letter))
        }
        letter => letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Value};

    #[test]
    fn every_character_reads_back() {
        for letter in ('\0'..='\u{ffff}')
            .filter(|letter| !letter.is_ascii_alphanumeric() && !"-_./+".contains(*letter))
            .chain(['🦀', '\u{10ffff}'])
        {
            let text = format!("a{letter}b");
            let file = format!("key: {}\n", quoted(&text));
            let mut document = Document::parse("x.yaml", &file, &[])
                .unwrap_or_else(|problems| panic!("U+{:04X}: {problems}", u32::from(letter)));
            let found = document.take("key").map(|entry| entry.value.value);
            let wanted = Value::Scalar { text, quoted: true };
            assert_eq!(found, Some(wanted), "U+{:04X}", u32::from(letter));
        }
    }
}
