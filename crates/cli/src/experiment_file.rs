//! An experiment as a command line names it: its file, and the keys that are replaced.

use std::path::{Path, PathBuf};

use annulus_experiment::{Override, quoted_path};
use clap::Args;

use crate::values::replacement;

/// An experiment and the keys that are replaced in it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ExperimentFile {
    /// An experiment, or a run's folder
    pub(crate) file: PathBuf,
    /// Keys to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
}

/// The arguments of commands that examine an experiment without running it.
#[derive(Args, Debug)]
pub(crate) struct Inspection {
    #[command(flatten)]
    pub(crate) file: ExperimentFile,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The replacement of a key by a value.
pub(crate) fn replaced(key: &str, value: &str) -> Override {
    Override { key: key.to_owned(), value: value.to_owned() }
}

/// The replacement of a key by a path, whatever is in its name.
pub(crate) fn replaced_path(key: &str, path: &Path) -> Override {
    replaced(key, &quoted_path(path))
}
