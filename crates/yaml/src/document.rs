//! Reading a file: its text, `key=value` from the command line in place of its values, its
//! sections; all mistakes at once.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::Section;
use crate::keys::Key;
use crate::problem::{Problem, Problems, Report};
use crate::read::{self, Strictness};
use crate::source::{Places, Source, Span, printable};
use crate::tree::{self, Entry, Node, Value};
use crate::values::Values;

/// Bytes of the largest file that is read.
pub const LARGEST: u64 = 1 << 20;

/// `data.tokens=64k` from the command line, typed like the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The path of the key, as in `data.tokens`.
    pub key: String,
    /// The value as it is written, as in `64k`.
    pub value: String,
}

impl Override {
    /// Splits an argument at its first `=`; `None` where there is none.
    pub fn split(argument: &str) -> Option<Override> {
        let (key, value) = argument.split_once('=')?;
        Some(Override { key: key.to_owned(), value: value.to_owned() })
    }
}

/// A file as a tree, with what is wrong with it so far.
#[derive(Debug)]
pub struct Document {
    /// The tree of the file.
    pub root: Node,
    /// Mistakes so far.
    pub report: Report,
}

/// A file as a section, with what is wrong with it so far.
#[derive(Debug)]
pub struct Reading<S> {
    /// The section; `None` where a key that it needs is missing or wrong.
    pub section: Option<S>,
    /// Places of its keys in the file.
    pub places: Places,
    /// Mistakes so far.
    pub report: Report,
}

impl Document {
    /// Reads YAML, or JSON, from text; `name` is what errors call the file.
    ///
    /// # Errors
    /// A text that is too long or no YAML, with what is wrong with `overrides`.
    pub fn parse(name: &str, text: &str, overrides: &[Override]) -> Result<Document, Problems> {
        if text.len() as u64 > LARGEST {
            return Err(too_large(name).into());
        }
        let mut sources = vec![Source::file(name, text)];
        let argument =
            |given: &Override| Source::argument(format!("{}={}", given.key, given.value));
        sources.extend(overrides.iter().map(argument));
        let mut report = Report::new(sources);
        let root = tree::read(&mut report, 0, 0);
        let invalid = !report.is_empty() && root.is_none();
        let mut root = root.unwrap_or_else(|| Node::empty(0));
        for (index, given) in overrides.iter().enumerate() {
            apply(&mut root, &mut report, index + 1, given);
        }
        if invalid { Err(report.finish()) } else { Ok(Document { root, report }) }
    }

    /// Types the keys of a file of ours: every unknown key is a mistake. `title` is what it is.
    pub fn values(&mut self, keys: &'static [&'static [Key]], title: &'static str) -> Values {
        read::values(&self.root, &mut self.report, keys, title, Strictness::Ours)
    }

    /// Types the keys of a file of others, which may have more, and `null` for nothing.
    pub fn values_of_others(
        &mut self,
        keys: &'static [&'static [Key]],
        title: &'static str,
    ) -> Values {
        read::values(&self.root, &mut self.report, keys, title, Strictness::Theirs)
    }

    /// Places of the written keys.
    pub fn places(&self, values: &Values) -> Places {
        Places::new(self.report.sources.clone(), values.spans.clone())
    }

    /// Takes a key of the top with its value out of the file.
    pub fn take(&mut self, key: &str) -> Option<Entry> {
        let Value::Mapping(entries) = &mut self.root.value else { return None };
        let index = entries.iter().position(|entry| entry.key == key)?;
        Some(entries.remove(index))
    }

    /// This file with other `values` for keys, by their dotted names, or without those that are null. Mistakes are reported where those values
    /// were written.
    #[must_use]
    pub fn with(&self, values: &[&Entry]) -> Document {
        let mut root = self.root.clone();
        for Entry { key, key_span, value } in values {
            let path: Vec<&str> = key.split('.').collect();
            if value.value == Value::Nothing {
                root.remove(&path);
            } else {
                root.set(&path, *key_span, value.clone());
            }
        }
        Document { root, report: Report::new(self.report.sources.clone()) }
    }

    /// The file as one section. `title` is what it is.
    pub fn section<S: Section>(mut self, title: &'static str) -> Reading<S> {
        let values = self.values(S::KEYS, title);
        let places = self.places(&values);
        Reading { section: S::read(&values, ""), places, report: self.report }
    }
}

/// Writes one override into the tree.
fn apply(root: &mut Node, report: &mut Report, source: usize, given: &Override) {
    let key_span = Span { source, start: 0, end: given.key.len() };
    let path: Vec<&str> = given.key.split('.').collect();
    if path.iter().any(|part| part.trim().is_empty()) {
        report.at(key_span, || {
            let hint =
                String::from("an override is `section.key=value`, such as `data.tokens=64k`");
            (format!("`{}` is not a key", printable(&given.key)), Some(hint))
        });
        return;
    }
    let before = report.len();
    let from = given.key.len() + 1;
    if let Some(start) = tree::comment(&given.value) {
        let end = from + given.value.len();
        report.at(Span { source, start: from + start, end }, || {
            let hint = "behind ` #` YAML reads a comment: put the value in quotes of its own, as in `'data.path=\"books #1\"'`";
            (String::from("a value on the command line has no comment"), Some(hint.to_owned()))
        });
        return;
    }
    match tree::read(report, source, from) {
        // `sample=null` takes a key out of the file. One that is not there is read as it is, so that a misspelt key is found.
        Some(Node { value: Value::Nothing, .. }) if root.remove(&path) => {}
        Some(value) => root.set(&path, key_span, value),
        // An empty value is told apart from one that does not parse.
        None if before == report.len() => {
            let span = Span { source, start: from, end: from };
            root.set(&path, key_span, Node { value: Value::Nothing, span });
        }
        None => {}
    }
}

/// The text of the file at `path`; a pipe of the shell can be read only once.
///
/// # Errors
/// A file that cannot be read, is too large, or is no text.
pub fn read_file(path: &Path) -> Result<String, Problem> {
    // A pipe of the shell is open already; another one could make it wait for ever.
    let piped = ["/dev/stdin", "/dev/fd", "/proc/self/fd"].iter().any(|at| path.starts_with(at));
    let file = if piped { File::open(path) } else { annulus_files::open(path) };
    text_of(&path.display().to_string(), file)
}

/// The text of a file in a folder that somebody else may have made: no line of a file that a link out of it leads to is shown.
///
/// # Errors
/// As [`read_file`], and a link out of the folder.
pub fn read_within(folder: &Path, name: &str) -> Result<String, Problem> {
    let file = annulus_files::within(folder, name).and_then(|path| annulus_files::open(&path));
    text_of(&folder.join(name).display().to_string(), file)
}

fn text_of(name: &str, file: std::io::Result<File>) -> Result<String, Problem> {
    let unreadable = |error: std::io::Error| {
        let problem = Problem::new(format!("`{name}` cannot be read: {error}"));
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                problem.hint("check the path; it is relative to the current folder")
            }
            std::io::ErrorKind::InvalidInput => problem.hint("give a file"),
            _ => problem,
        }
    };
    let file = file.map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(Problem::new(format!("`{name}` is a folder, not a file")));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST {
        return Err(too_large(name));
    }
    String::from_utf8(bytes).map_err(|error| not_text(name, &error))
}

fn too_large(name: &str) -> Problem {
    Problem::new(format!("`{}` is larger than {LARGEST} bytes", printable(name)))
        .hint("is it the right file? an experiment has some forty lines")
}

fn not_text(name: &str, error: &std::string::FromUtf8Error) -> Problem {
    let valid = error.utf8_error().valid_up_to();
    let before = String::from_utf8_lossy(&error.as_bytes()[..valid]);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let byte = error.as_bytes()[valid];
    Problem {
        message: format!("byte 0x{byte:02x} is not UTF-8 text"),
        place: Some(Source::file(name, "").header(line, column)),
        hint: Some(String::from("give a text file, saved as UTF-8; of a model, give its folder")),
    }
}
