//! What is wrong with data: the file, where in it, what was found, and the way out.

use std::path::PathBuf;

/// What is wrong with data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file cannot be read.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl DataError {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<String> {
        None
    }
}
