//! Errors of safetensors files and their indices.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A file of tensors, or an index of such files, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}", Said(self))]
pub struct TensorsError {
    /// The file.
    pub file: PathBuf,
    /// The reason.
    #[source]
    pub problem: Problem,
}

/// Why a file of tensors cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read.
    #[error(transparent)]
    Read(io::Error),
    /// The path is a folder, a pipe or a device.
    #[error("it is not a regular file")]
    Irregular,
    /// The file is what Git LFS leaves in its place.
    #[error("it is a Git LFS pointer")]
    Pointer,
    /// The file has another format.
    #[error("it is not a safetensors file")]
    Foreign,
    /// The file is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The file is shorter than when it was opened.
    #[error("it was cut short while it was read")]
    Shrunk,
}

impl TensorsError {
    /// The error of the system, for this file.
    pub fn read(file: &Path, error: io::Error) -> TensorsError {
        let problem = match error.kind() {
            io::ErrorKind::UnexpectedEof => Problem::Shrunk,
            io::ErrorKind::InvalidInput => Problem::Irregular,
            _ => Problem::Read(error),
        };
        TensorsError { file: file.to_owned(), problem }
    }

    /// The error of a malformed file; `problem` may quote it.
    pub fn malformed(file: &Path, problem: &dyn fmt::Display) -> TensorsError {
        let problem = Problem::Malformed(shown(&problem.to_string()));
        TensorsError { file: file.to_owned(), problem }
    }

    /// What the user can do, where something can be done.
    pub fn hint(&self) -> Option<&'static str> {
        match self.problem {
            Problem::Read(_) => None,
            Problem::Irregular => Some("copy the file itself into the folder"),
            Problem::Pointer => Some("`git lfs pull` in its folder fetches the file itself"),
            Problem::Malformed(_) if self.file.extension().is_some_and(|kind| kind == "json") => {
                Some("expected an index of safetensors files: fetch or save it again")
            }
            Problem::Foreign => Some("fetch the file again, or save it as safetensors"),
            Problem::Malformed(_) => Some("expected a safetensors file: fetch or save it again"),
            Problem::Shrunk => Some("write no file that is in use: try again when it is whole"),
        }
    }
}

/// The sentence of an error.
struct Said<'a>(&'a TensorsError);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorsError { file, problem } = self.0;
        let file = file.display();
        match problem {
            Problem::Read(error) => write!(f, "cannot read `{file}`: {error}"),
            Problem::Irregular => write!(f, "`{file}` is not a regular file"),
            Problem::Pointer => {
                write!(f, "`{file}` is a Git LFS pointer, not the file itself")
            }
            Problem::Foreign => write!(f, "`{file}` is not a safetensors file"),
            Problem::Malformed(problem) => write!(f, "`{file}` is damaged: {problem}"),
            Problem::Shrunk => write!(f, "`{file}` was cut short while it was read"),
        }
    }
}

/// Untrusted text made fit to be printed: on one line, without control characters, and of at most 200 characters.
pub fn shown(text: &str) -> String {
    annulus_text::shortened(text, 200)
}
