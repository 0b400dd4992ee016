//! The traces in a run's folder, a file per traced step.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::{Result, TrainError};

/// The file of a step's trace in a run's folder.
pub fn trace_of(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("trace-{step}.json"))
}

/// The steps of which the run in `folder` has a trace, rising.
///
/// # Errors
/// A folder that cannot be read.
pub fn traced_steps(folder: &Path) -> Result<Vec<u64>> {
    steps(folder).map_err(|error| unread(folder, &error))
}

/// The step of a trace file, `trace-STEP.json`.
pub fn traced_step(path: &Path) -> Option<u64> {
    let step = path.file_name()?.to_str()?.strip_prefix("trace-")?;
    let step = step.strip_suffix(".json")?.parse().ok()?;
    // `trace-07.json` is not a name that a run gives.
    Some(step).filter(|&step| trace_of(Path::new(""), step).file_name() == path.file_name())
}

fn steps(folder: &Path) -> io::Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder)? {
        steps.extend(traced_step(&entry?.path()));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Removes the traces of steps after `step`, which an attempt took that has not saved them.
pub(crate) fn drop_after(folder: &Path, step: u64) -> io::Result<()> {
    let later = steps(folder)?.into_iter().filter(|&traced| traced > step);
    later.into_iter().try_for_each(|traced| fs::remove_file(trace_of(folder, traced)))
}

/// The error that a trace, or a folder with traces, cannot be read.
pub(crate) fn unread(path: &Path, error: &io::Error) -> TrainError {
    TrainError::unreadable(
        format!("cannot read `{}`: {error}", path.display()),
        "give an experiment, a run's folder, or a `trace-STEP.json` in one",
    )
}
