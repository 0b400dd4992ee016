//! Checkpoints that other runs need: adapters are useless without the weights that they were trained beside.

use std::io::{self, Write as _};
use std::path::Path;

use crate::checkpoint::is_checkpoint;

/// The file in a checkpoint that names the folders of runs that need it, a line each.
const NEEDED: &str = "needed_by.txt";
/// The most bytes that are read of it.
const MOST: u64 = 1 << 20;

/// Notes in the checkpoint `base` that the run in `output` needs it; it is not deleted then for as long as that run's folder is there.
/// Other folders are not of runs, which delete what is old.
pub(crate) fn need(base: &Path, output: &Path) -> io::Result<()> {
    if !is_checkpoint(base) {
        return Ok(());
    }
    let run = output.canonicalize()?;
    let run = run.to_str().ok_or_else(|| io::Error::other("its path is not UTF-8"))?;
    if noted(base)?.lines().any(|line| line == run) {
        return Ok(());
    }
    // Added by one write: runs of a sweep begin at once.
    annulus_files::append(&base.join(NEEDED))?.write_all(format!("\n{run}\n").as_bytes())
}

/// Whether a run that is still there needs the checkpoint `folder`.
pub(crate) fn is_needed(folder: &Path) -> bool {
    let is_run = |line: &str| !line.is_empty() && Path::new(line).is_dir();
    // What cannot be read is not deleted.
    noted(folder).map_or(true, |all| all.lines().any(is_run))
}

fn noted(folder: &Path) -> io::Result<String> {
    match annulus_files::read_to_string(&folder.join(NEEDED), MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}
