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
    for letter in text.chars() {
        if !is_obeyed(letter) {
            shown.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    Cow::Owned(shown)
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
