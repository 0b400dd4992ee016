//! A user's mistakes, shown as a compiler does: file, line, column, caret, hint; all at once.

use std::fmt;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What was found and what was wanted.
    pub message: String,
    /// File, line, column and the line's text, where there is one.
    pub place: Option<String>,
    /// The way out.
    pub hint: Option<String>,
}

/// All mistakes of a file. Displays as `error: …` blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

impl std::error::Error for Problems {}
