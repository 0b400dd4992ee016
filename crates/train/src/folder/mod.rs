//! A run's folder: its files, as they are written while the run trains and read afterwards.

pub(crate) mod claim;
pub(crate) mod curves;
pub(crate) mod jsonl;
pub(crate) mod line;
pub(crate) mod lines;
pub(crate) mod manifest;
pub(crate) mod own;
pub(crate) mod record;
pub(crate) mod run_folder;
pub(crate) mod traces;

use std::path::Path;

pub(crate) use annulus_files::write as write_atomically;

/// The file with the resolved experiment, which every later command, and a resumed run, reads.
pub const RESOLVED: &str = "experiment.yaml";
/// The file with the experiment's text as given, before the command line replaced anything.
pub(crate) const GIVEN: &str = "given.yaml";
/// The file that a running process keeps locked.
pub(crate) const LOCK: &str = "run.lock";
/// The file with hashes of state and computation.
pub(crate) const HASHES: &str = "hashes.jsonl";
/// The file with hashes of messages.
pub(crate) const MESSAGES: &str = "messages.jsonl";

/// Whether a folder holds a run.
pub fn is_run(folder: &Path) -> bool {
    [RESOLVED, LOCK].iter().all(|name| folder.join(name).is_file())
}
