//! A user's mistakes, shown as a compiler does: file, line, column, caret, hint; all at once.

use std::borrow::Cow;
use std::fmt;

use crate::source::{Source, Span};

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The found and the wanted value.
    pub message: String,
    /// File, line, column and the line's text, where there is one.
    pub place: Option<String>,
    /// The hint: what to do about it, where something can be done.
    pub hint: Option<String>,
}

impl Problem {
    /// A mistake that has no place in a file.
    pub fn new(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), place: None, hint: None }
    }

    /// This mistake with its way out.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems(vec![problem])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", inset(&self.message))?;
        if let Some(place) = &self.place {
            write!(f, "\n{place}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {}", inset(hint))?;
        }
        Ok(())
    }
}

/// Lines after the first one begin with a space: a name with a line break in it cannot look like a message of ours.
fn inset(text: &str) -> Cow<'_, str> {
    if !text.contains('\n') {
        return Cow::Borrowed(text);
    }
    let mut lines = text.split('\n');
    let mut shown = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        let gap = if line.starts_with(' ') { "" } else { "  " };
        shown.extend(["\n", gap, line]);
    }
    Cow::Owned(shown)
}

/// All mistakes of a file. Displays as `error: …` blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n\n" };
            write!(f, "{gap}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Collects mistakes while reading; past a limit it only counts them, so that a hostile file costs
/// no more than a bad one.
#[derive(Debug, Default)]
pub struct Report {
    /// The file, then the arguments of the command line.
    pub(crate) sources: Vec<Source>,
    problems: Vec<Problem>,
    left_out: usize,
}

impl Report {
    /// More are counted, not shown.
    const SHOWN: usize = 50;

    /// No mistakes so far in a file and in arguments of the command line.
    pub fn new(sources: Vec<Source>) -> Report {
        Report { sources, ..Report::default() }
    }

    /// True while there are no mistakes.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// True once further mistakes are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= Report::SHOWN
    }

    /// The number of mistakes.
    pub(crate) fn len(&self) -> usize {
        self.problems.len() + self.left_out
    }

    /// Adds a mistake at `span`. `describe` gives message and hint; it is not called once there are
    /// too many.
    pub fn at(&mut self, span: Span, describe: impl FnOnce() -> (String, Option<String>)) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        let (message, hint) = describe();
        let source = self.sources.get(span.source).filter(|source| source.is_shown());
        let place = source.map(|source| source.show(span));
        self.problems.push(Problem { message, place, hint });
    }

    /// Adds finished problems.
    pub fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.problems.extend(problems);
    }

    /// All mistakes that were reported.
    pub fn finish(mut self) -> Problems {
        if self.left_out > 0 {
            self.problems.push(Problem::new(format!("{} more problems", self.left_out)));
        }
        Problems(self.problems)
    }
}
