//! What earlier evaluations left in a folder: results of the same checkpoint are replaced, those of others are kept beside.
//!
//! The folder has the results of the checkpoint that was evaluated last; `step-K` in it has those of another one. For TensorBoard all
//! steps stay in the folder itself, so that it draws one curve.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use annulus_train::is_run;

use crate::files::PICTURES;
use crate::{Evaluated, RESULTS};

/// The step of the results in `folder`, if they can be read.
fn step_of(results: &Evaluated) -> Option<u64> {
    let read = results.perplexity.as_ref().map(|found| found.step);
    read.or_else(|| results.tasks.as_ref().map(|found| found.step))
}

/// Where the results in `folder` are kept if a checkpoint of `step` is evaluated into it; `None` if there are none, or they are of the same
/// step and thus replaced.
pub fn kept_in(folder: &Path, step: u64) -> Option<PathBuf> {
    let results = Evaluated::read(folder).unwrap_or_default();
    let earlier = step_of(&results).filter(|earlier| *earlier != step && !is_run(folder));
    earlier.map(|earlier| folder.join(name(earlier)))
}

/// Makes `folder` that of `step`: what it has of another step moves to a folder of its own, and what was kept of this step comes back.
pub(crate) fn settle(folder: &Path, step: u64) -> io::Result<()> {
    if let Some(kept) = kept_in(folder, step) {
        let kept = subfolder(folder, &kept)?;
        move_results(folder, &kept)?;
    }
    let own = folder.join(name(step));
    if !is_run(folder) && own.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        move_results(&own, folder)?;
        // Fails, rightly, where the folder holds anything else.
        let _ = fs::remove_dir(&own);
    }
    Ok(())
}

fn name(step: u64) -> String {
    format!("step-{step}")
}

fn subfolder(folder: &Path, kept: &Path) -> io::Result<PathBuf> {
    let name = kept.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    annulus_files::subfolder(folder, name)
}

/// Moves the files of an evaluation, which replace those that are there.
fn move_results(from: &Path, to: &Path) -> io::Result<()> {
    let results = Evaluated::read(from).unwrap_or_default();
    let of_tasks = results.tasks.iter().flat_map(|tasks| tasks.tasks());
    let drawn = PICTURES.into_iter().chain(of_tasks);
    let drawn = drawn.flat_map(|name| ["svg", "png"].map(|ending| format!("{name}.{ending}")));
    // The results last: a move that was cut short is begun again by them.
    for name in drawn.chain(RESULTS.map(str::to_owned)) {
        match fs::rename(from.join(&name), to.join(&name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
