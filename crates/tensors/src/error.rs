//! What is wrong with a file of tensors.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A file of tensors, or an index of such files, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}", Said(self))]
pub struct TensorsError {
    /// Which.
    pub file: PathBuf,
    /// Why.
    #[source]
    pub problem: Problem,
}

/// Why a file of tensors cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It cannot be read.
    #[error(transparent)]
    Read(io::Error),
    /// It is a folder, a pipe or a device.
    #[error("it is not a regular file")]
    Irregular,
    /// It is not what its name says.
    #[error("{0}")]
    Malformed(String),
    /// It is shorter than it was when it was opened.
    #[error("it was cut short while it was read")]
    Shrunk,
}

impl TensorsError {
    /// What the system says of it.
    pub fn read(file: &Path, error: io::Error) -> TensorsError {
        let problem = match error.kind() {
            io::ErrorKind::UnexpectedEof => Problem::Shrunk,
            io::ErrorKind::InvalidInput => Problem::Irregular,
            _ => Problem::Read(error),
        };
        TensorsError { file: file.to_owned(), problem }
    }

    /// The problem may quote the file.
    pub fn malformed(file: &Path, problem: &dyn fmt::Display) -> TensorsError {
        let problem = Problem::Malformed(shown(&problem.to_string()));
        TensorsError { file: file.to_owned(), problem }
    }

    /// The way out, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self.problem {
            Problem::Read(_) => None,
            Problem::Irregular => Some("copy the file itself into the folder"),
            Problem::Malformed(_) => Some("a safetensors file is wanted: fetch or save it again"),
            Problem::Shrunk => Some("write no file that is in use: try again when it is whole"),
        }
    }
}

/// An error's sentence.
struct Said<'a>(&'a TensorsError);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorsError { file, problem } = self.0;
        let file = file.display();
        match problem {
            Problem::Read(error) => write!(f, "cannot read `{file}`: {error}"),
            Problem::Irregular => write!(f, "`{file}` is not a regular file"),
            Problem::Malformed(problem) => write!(f, "`{file}` is damaged or hostile: {problem}"),
            Problem::Shrunk => write!(f, "`{file}` was cut short while it was read"),
        }
    }
}

/// Text out of a file that is not trusted, fit to be printed: nothing that moves a cursor, nothing endless.
pub fn shown(text: &str) -> String {
    const LONGEST: usize = 200;
    let mut plain: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        plain.push('…');
    }
    plain
}
