//! Text from outside as a terminal, a page or a picture may have it: names, paths and messages can contain control characters.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `text` with every control character, and every one that changes the order of others, written as `\u001b`. Line breaks and tabs
/// stay. JSON keeps its meaning, since such characters occur only in its strings.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    text.chars().for_each(|letter| push(&mut shown, letter));
    Cow::Owned(shown)
}

/// The first `most` characters of `text` on one line: [`escaped`], with line breaks as `\n` and tabs as `\t`, and `…` if more follows.
pub fn shortened(text: &str, most: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(most));
    let mut letters = text.chars();
    for letter in letters.by_ref().take(most) {
        match letter {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            letter => push(&mut shown, letter),
        }
    }
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Appends a character, escaped if it is obeyed.
fn push(shown: &mut String, letter: char) {
    if !is_obeyed(letter) {
        return shown.push(letter);
    }
    for unit in letter.encode_utf16(&mut [0; 2]) {
        // Writing to a string cannot fail.
        let _ = write!(shown, "\\u{unit:04x}");
    }
}

/// Whether a reader interprets the character instead of showing it, or refuses it as XML does: control characters, line separators, marks
/// of writing direction, invisible tags, what is no character.
fn is_obeyed(letter: char) -> bool {
    const TURNING: [char; 4] = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{feff}'];
    match letter {
        '\n' | '\t' => false,
        '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{fffe}'
        | '\u{ffff}'
        | '\u{e0000}'..='\u{e007f}' => true,
        letter => letter.is_control() || TURNING.contains(&letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_text_is_one_line_without_control_characters() {
        assert_eq!(shortened("a\nb\tc\u{1b}[2J", 99), "a\\nb\\tc\\u001b[2J");
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöü", 2), "äö…");
        assert_eq!(shortened(&shortened("\n\u{202e}", 9), 99), shortened("\n\u{202e}", 9));
    }
}
