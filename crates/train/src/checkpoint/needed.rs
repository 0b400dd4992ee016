//! Checkpoints that other runs need: adapters are useless without the weights that they were trained beside.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::is_checkpoint;
use crate::folder::write_atomically;

/// The file in a checkpoint that names the folders of runs that need it, a line each.
const NEEDED: &str = "needed_by.txt";

/// Notes in the checkpoint `base` that the run in `output` needs it; it is not deleted then for as long as that run's folder is there.
/// Other folders are not of runs, which delete what is old.
pub(crate) fn need(base: &Path, output: &Path) -> io::Result<()> {
    if !is_checkpoint(base) {
        return Ok(());
    }
    let run = output.canonicalize()?.display().to_string();
    let mut all = noted(base)?;
    if all.lines().any(|line| line == run) {
        return Ok(());
    }
    all.push_str(&run);
    all.push('\n');
    write_atomically(&base.join(NEEDED), all.as_bytes())
}

/// Whether a run that is still there needs the checkpoint `folder`.
pub(crate) fn is_needed(folder: &Path) -> bool {
    // What cannot be read is not deleted.
    noted(folder).map_or(true, |all| all.lines().map(PathBuf::from).any(|run| run.is_dir()))
}

fn noted(folder: &Path) -> io::Result<String> {
    match fs::read_to_string(folder.join(NEEDED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}
