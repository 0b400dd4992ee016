//! Text that was written by somebody, and how a place in it is shown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use crate::Problem;

/// Bytes `start .. end` of a source, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The file, or the argument from 1 on.
    pub source: usize,
    /// The first byte.
    pub start: usize,
    /// The byte behind the last.
    pub end: usize,
}

/// A file's text, or one argument of the command line.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the file; none for an argument, and empty for a text that is in no file, whose lines are not shown.
    name: Option<String>,
    /// Shared by all runs of a sweep.
    text: Arc<str>,
}

/// Columns of a long line that are shown.
const WINDOW: usize = 100;

impl Source {
    /// A file that errors call `name`; empty for a text that a program has made, which nobody can look at.
    pub fn file(name: &str, text: &str) -> Source {
        Source { name: Some(name.chars().map(visible).collect()), text: text.into() }
    }

    pub(crate) fn argument(text: String) -> Source {
        Source { name: None, text: text.into() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether its name says that it is JSON, which is read as YAML.
    pub(crate) fn is_json(&self) -> bool {
        let ending = self.name.as_deref().map(Path::new).and_then(Path::extension);
        ending.is_some_and(|ending| ending == "json")
    }

    /// Whether whoever reads an error can find the text.
    pub(crate) fn is_shown(&self) -> bool {
        self.name.as_deref() != Some("")
    }

    /// ` --> name:line:column`, without the text.
    pub(crate) fn header(&self, line: usize, column: usize) -> String {
        match &self.name {
            Some(name) => format!(" --> {name}:{line}:{column}"),
            None => String::from(" --> command line"),
        }
    }

    /// The line of a byte, from 1.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.split(|&byte| byte == b'\n').count()
    }

    /// The place of `span` as text: name, line, column, and the line with a caret under the value.
    pub fn show(&self, span: Span) -> String {
        let start = floor(&self.text, span.start);
        let end = floor(&self.text, span.end.max(start));
        let from = self.text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let to = self.text[start..].find(['\n', '\r']).map_or(self.text.len(), |n| start + n);
        let line = self.line_of(start);
        let column = self.text[from..start].chars().count();
        let carets = self.text[start..end.min(to).max(start)].chars().count().max(1);
        let (shown, caret) = window(&self.text[from..to], column);
        let carets = carets.min(shown.chars().count().saturating_sub(caret)).max(1);
        let number = if self.name.is_some() { line.to_string() } else { String::new() };
        let gutter = " ".repeat(number.len());
        let mut place = self.header(line, column + 1);
        if !shown.trim().is_empty() {
            let (pad, under) = (" ".repeat(caret), "^".repeat(carets));
            // Writing to a string cannot fail.
            let _ = write!(place, "\n{gutter} |\n{number} | {shown}\n{gutter} | {pad}{under}");
        }
        place
    }
}

/// The part of `line` around `column` that fits, and the column in it.
fn window(line: &str, column: usize) -> (String, usize) {
    let skip = if column < WINDOW * 3 / 4 { 0 } else { column - WINDOW / 4 };
    let mut shown: String = line.chars().skip(skip).take(WINDOW).map(visible).collect();
    if line.chars().nth(skip + WINDOW).is_some() {
        shown.push('…');
    }
    if skip > 0 {
        shown.insert(0, '…');
    }
    (shown.trim_end().to_owned(), column - skip + usize::from(skip > 0))
}

/// A character of a line that is shown with carets under it, so one for one: a terminal must not obey what a file contains.
fn visible(letter: char) -> char {
    match letter {
        '\t' => ' ',
        letter if letter.is_control() => '\u{fffd}',
        letter => letter,
    }
}

/// Text of a user, short and harmless enough for a message.
pub fn printable(text: &str) -> String {
    annulus_text::shortened(text, WINDOW)
}

/// The nearest boundary of a character at or below `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Places of the written keys of an experiment, for mistakes that are found later. Never compared:
/// two experiments are equal when they mean the same.
#[derive(Clone, Default)]
pub struct Places(Arc<Written>);

#[derive(Default)]
struct Written {
    sources: Vec<Source>,
    spans: BTreeMap<String, Span>,
}

impl Places {
    pub(crate) fn new(sources: Vec<Source>, spans: BTreeMap<String, Span>) -> Places {
        Places(Arc::new(Written { sources, spans }))
    }

    /// True for a key that was written rather than left to its default.
    pub fn contains(&self, key: &str) -> bool {
        self.0.spans.contains_key(key)
    }

    /// Of keys that do not go together, the one to show a problem at: the first that the command line sets, else the first. The file is as it
    /// was when it was right.
    pub fn to_blame<'k>(&self, keys: &[&'k str]) -> &'k str {
        let argued = |key: &&&str| self.0.spans.get(**key).is_some_and(|span| span.source > 0);
        keys.iter().find(argued).or(keys.first()).copied().unwrap_or_default()
    }

    /// The places where some keys stand for others: `as_key` says for which. A section that is stood for
    /// is gone with all its keys.
    #[must_use]
    pub fn standing_for(&self, as_key: impl Fn(&str) -> Option<String>) -> Places {
        let Written { sources, spans } = &*self.0;
        let own: BTreeMap<String, Span> =
            spans.iter().filter_map(|(key, span)| Some((as_key(key)?, *span))).collect();
        let mut spans = spans.clone();
        spans.retain(|key, _| {
            !key.split_once('.').is_some_and(|(section, _)| own.contains_key(section))
        });
        spans.extend(own);
        Places::new(sources.clone(), spans)
    }

    /// A problem with the key `key`, such as `data.tokens`, shown where it is written: there, at the
    /// nearest section around it, or at the file.
    pub fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let mut keys = std::iter::successors(Some(key), |key| Some(key.rsplit_once('.')?.0));
        let span = keys.find_map(|key| self.0.spans.get(key));
        let source = self.0.sources.get(span.map_or(0, |span| span.source));
        let place = source.filter(|source| source.is_shown()).map(|source| match span {
            Some(span) => source.show(*span),
            None => source.header(1, 1),
        });
        Problem { message: message.into(), place, hint: None }
    }
}

impl PartialEq for Places {
    fn eq(&self, _: &Places) -> bool {
        true
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Places({} keys)", self.0.spans.len())
    }
}
