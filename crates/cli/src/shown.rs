//! Makes text safe for a terminal: text from outside (names, messages in files, generated text) can contain control characters and be
//! very long.

use std::borrow::Cow;
use std::fmt::Write;

use annulus_text::escaped;

/// The most characters of one line of a message.
const LINE: usize = 2000;
/// The most lines of a message, more than the errors of a file ever have.
const LINES: usize = 400;

/// `text` escaped, and shortened to the length of a message with a note of how much was left out.
pub fn message(text: &str) -> String {
    let mut shown = String::new();
    let mut lines = text.split('\n');
    for (index, line) in lines.by_ref().take(LINES).enumerate() {
        if index > 0 {
            shown.push('\n');
        }
        shown.push_str(&cut(line));
    }
    let more = lines.count();
    if more > 0 {
        let _ = write!(shown, "\n… and {more} more lines");
    }
    shown
}

/// A line, shortened to its beginning and its end, where a hint often is.
fn cut(line: &str) -> Cow<'_, str> {
    // A line has no more characters than bytes, which are quick to count.
    let letters = if line.len() > LINE { line.chars().count() } else { 0 };
    if letters <= LINE {
        return escaped(line);
    }
    let at = |number: usize| line.char_indices().nth(number).map_or(line.len(), |(at, _)| at);
    let (first, last) = (at(LINE / 2), at(letters - LINE / 4));
    let left_out = letters - LINE / 2 - LINE / 4;
    let (first, last) = (escaped(&line[..first]), escaped(&line[last..]));
    Cow::Owned(format!("{first} … {left_out} characters left out … {last}"))
}
