//! The traces in a run's folder.

use std::path::Path;

use annulus_trace::Trace;

use crate::folder::traces::unread;
use crate::{Result, TrainError};

/// The largest trace file that is read, in bytes.
const LARGEST: u64 = 1 << 28;

/// A trace of every run that may be planned can be read.
const _: () = assert!(annulus_trace::MOST_RANKS == annulus_experiment::MOST_RANKS);

/// Reads a trace, of a run or of a plan, from a file.
///
/// # Errors
/// A file that cannot be read, or was not written by this program.
pub fn read_trace(path: &Path) -> Result<Trace> {
    let text =
        annulus_files::read_to_string(path, LARGEST).map_err(|error| unread(path, &error))?;
    Trace::from_json(&text).map_err(|error| {
        TrainError::unreadable(
            format!("`{}`: {error}", path.display()),
            "such files are written by `trace.steps`, and by `annulus trace FILE --out PATH`",
        )
    })
}
