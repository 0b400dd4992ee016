//! The traces in a run's folder.

use std::fs;
use std::path::Path;

use annulus_trace::Trace;

use crate::{Result, TrainError};

/// The largest trace file that is read, in bytes.
const LARGEST: u64 = 1 << 28;

/// The steps of which the run in `folder` has a trace, rising.
///
/// # Errors
/// A folder that cannot be read.
pub fn traced_steps(folder: &Path) -> Result<Vec<u64>> {
    let failed = |error| unread(format!("cannot read `{}`: {error}", folder.display()));
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        steps.extend(traced_step(&entry.map_err(failed)?.path()));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The step of a trace file, `trace-STEP.json`.
pub fn traced_step(path: &Path) -> Option<u64> {
    let step = path.file_name()?.to_str()?.strip_prefix("trace-")?;
    step.strip_suffix(".json")?.parse().ok()
}

/// Reads a trace, of a run or of a plan, from a file.
///
/// # Errors
/// A file that cannot be read, or was not written by this program.
pub fn read_trace(path: &Path) -> Result<Trace> {
    let text = annulus_files::read_to_string(path, LARGEST)
        .map_err(|error| unread(format!("cannot read `{}`: {error}", path.display())))?;
    Trace::from_json(&text).map_err(|error| TrainError::Unreadable {
        message: format!("`{}`: {error}", path.display()),
        hint: "such files are written by `trace.steps`, and by `annulus trace FILE --out PATH`"
            .to_owned(),
    })
}

fn unread(message: String) -> TrainError {
    let hint = "give an experiment, a run's folder, or a `trace-STEP.json` in one".to_owned();
    TrainError::Unreadable { message, hint }
}
