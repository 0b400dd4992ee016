//! Reading: the file, then `key=value` from the command line; all problems at once.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::problem::Report;
use crate::source::{Source, Span, printable};
use crate::tree::{self, Node};
use crate::{Experiment, Places, Problem, Problems, build, extract, rules};

/// `data.tokens=64k` from the command line, typed like the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// `data.tokens`
    pub key: String,
    /// `64k`
    pub value: String,
}

impl Override {
    /// Splits an argument at its first `=`; `None` where there is none.
    pub fn split(argument: &str) -> Option<Override> {
        let (key, value) = argument.split_once('=')?;
        Some(Override { key: key.to_owned(), value: value.to_owned() })
    }
}

/// Bytes of a file that is still an experiment, or a config.json.
pub(crate) const LARGEST: u64 = 1 << 20;

/// Reads and checks the file at `path` with `overrides`.
pub fn load(path: &Path, overrides: &[Override]) -> Result<Experiment, Problems> {
    parse(&path.display().to_string(), &read(path)?, overrides)
}

/// The text of the experiment at `path`; what the shell hands over as a pipe can be read but once.
///
/// # Errors
/// A file that cannot be read, is too large, or is no text.
pub fn read(path: &Path) -> Result<String, Problems> {
    // What the shell hands over is open already; another pipe could make it wait for ever.
    let handed = ["/dev/stdin", "/dev/fd", "/proc/self/fd"].iter().any(|at| path.starts_with(at));
    let file = if handed { File::open(path) } else { annulus_files::open(path) };
    Ok(text_of(&path.display().to_string(), file)?)
}

/// The same from text; `name` is what errors call the file.
pub fn parse(name: &str, text: &str, overrides: &[Override]) -> Result<Experiment, Problems> {
    if text.len() as u64 > LARGEST {
        return Err(too_large(name).into());
    }
    let mut sources = vec![Source::file(name, text)];
    sources.extend(overrides.iter().map(|o| Source::argument(format!("{}={}", o.key, o.value))));
    let mut report = Report::new(sources);
    let root = tree::read(&mut report, 0, 0);
    let invalid = !report.is_empty() && root.is_none();
    let mut root = root.unwrap_or_else(|| Node::empty(0));
    for (index, given) in overrides.iter().enumerate() {
        apply(&mut root, &mut report, index + 1, given);
    }
    if invalid {
        return Err(report.finish());
    }
    let values = extract::experiment(&root, &mut report);
    let places = Places::new(report.sources.clone(), values.spans.clone());
    report.extend(build::contradictions(&values, &places));
    let experiment = build::experiment(&values, places);
    report.extend(experiment.iter().flat_map(rules::check));
    match experiment {
        Some(experiment) if report.is_empty() => Ok(experiment),
        _ => Err(report.finish()),
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
    match tree::read(report, source, from) {
        Some(value) => root.set(&path, key_span, value),
        // An empty value is told apart from one that does not parse.
        None if before == report.len() => {
            let span = Span { source, start: from, end: from };
            root.set(&path, key_span, Node { value: tree::Value::Nothing, span });
        }
        None => {}
    }
}

/// The text of a regular file of reasonable size.
pub(crate) fn read_text(path: &Path) -> Result<String, Problem> {
    text_of(&path.display().to_string(), annulus_files::open(path))
}

/// The same of a file in a folder that somebody else may have made: of what a link out of it leads to, no line is shown.
pub(crate) fn read_within(folder: &Path, name: &str) -> Result<String, Problem> {
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

pub(crate) fn too_large(name: &str) -> Problem {
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
        message: format!("byte 0x{byte:02x} is no UTF-8 text"),
        place: Some(Source::file(name, "").header(line, column)),
        hint: Some(String::from("save the file as UTF-8")),
    }
}
