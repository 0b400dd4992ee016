//! Reading: the file, then `key=value` from the command line; all problems at once.

use std::path::Path;

use crate::{Experiment, Problems};

/// `data.tokens=64k` from the command line, typed like the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// `data.tokens`
    pub key: String,
    /// `64k`
    pub value: String,
}

/// Reads and checks the file at `path` with `overrides`.
pub fn load(_path: &Path, _overrides: &[Override]) -> Result<Experiment, Problems> {
    todo!()
}

/// The same from text; `name` is what errors call the file.
pub fn parse(_name: &str, _text: &str, _overrides: &[Override]) -> Result<Experiment, Problems> {
    todo!()
}
