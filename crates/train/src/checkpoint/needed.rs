//! Checkpoints that other runs need: adapters are useless without the weights that they were trained beside, and a run that has begun with
//! a checkpoint reads it again when it is resumed.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use crate::checkpoint::is_checkpoint;

/// The file in a checkpoint that names the folders of runs that need it, a line each.
const NEEDED: &str = "needed_by.txt";
/// The most bytes that are read of it.
const MOST: u64 = 1 << 20;

/// Notes in the checkpoint `base` that the run in `output` needs it; it is not deleted then for as long as that file names a run, because a
/// folder that is not where it was may have been moved. Other folders are not of runs, which delete what is old.
///
/// # Errors
/// `NotFound` where `base` is not there, or was deleted meanwhile; what the system says, and a path that no line of a text can hold.
pub fn need(base: &Path, output: &Path) -> io::Result<()> {
    if base.is_dir() && !is_checkpoint(base) {
        return Ok(());
    }
    let run = line_of(output)?;
    let (mut file, noted) = held(base)?;
    if !noted.lines().any(|line| line == run) {
        file.write_all(format!("\n{run}\n").as_bytes())?;
    }
    // Its own run may have been about to delete it.
    base.metadata().map(drop)
}

/// The file, locked until it is dropped, because runs of a sweep begin at once; and what is in it, behind which writing goes on.
fn held(base: &Path) -> io::Result<(File, String)> {
    let mut file = annulus_files::lock(&base.join(NEEDED))?;
    file.lock()?;
    let mut text = String::new();
    (&mut file).take(MOST).read_to_string(&mut text)?;
    if text.len() as u64 == MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it names too many runs"));
    }
    Ok((file, text))
}

/// Why the checkpoint `folder` is kept: which runs need it, and what frees it. `None`: none does.
pub(crate) fn kept_for(folder: &Path) -> Option<String> {
    let (checkpoint, file) = (folder.display(), folder.join(NEEDED));
    let noted = match noted(folder) {
        Ok(noted) => noted,
        // What cannot be read is not deleted.
        Err(error) => {
            let file = file.display();
            return Some(format!(
                "`{checkpoint}` is kept, because `{file}` cannot be read: {error}"
            ));
        }
    };
    let mut runs: Vec<&str> = noted.lines().filter(|line| !line.trim().is_empty()).collect();
    runs.sort_unstable();
    runs.dedup();
    let (first, more) = runs.split_first()?;
    let gone = if Path::new(first).is_dir() { "" } else { ", which is not there now," };
    let need = match more.len() {
        0 => " needs".to_owned(),
        more => format!(" and {more} more need"),
    };
    Some(format!(
        "`{checkpoint}` is kept, whatever `keep` is: `{first}`{gone}{need} it; delete `{}` to free it",
        file.display()
    ))
}

/// A run's line in the file.
fn line_of(output: &Path) -> io::Result<String> {
    let run = output.canonicalize()?;
    let run = run.to_str().filter(|run| !run.contains('\n'));
    run.map(str::to_owned)
        .ok_or_else(|| io::Error::other("its path is not UTF-8, or has several lines"))
}

fn noted(folder: &Path) -> io::Result<String> {
    match annulus_files::read_to_string(&folder.join(NEEDED), MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::checkpoint::STATE;

    #[test]
    fn a_checkpoint_is_kept_for_runs_that_need_it_also_for_those_that_moved() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().join("base/step-1");
        fs::create_dir_all(&base).unwrap();
        fs::write(base.join(STATE), "{}").unwrap();
        let runs = ["one", "two"].map(|name| place.path().join(name));
        for run in &runs {
            fs::create_dir(run).unwrap();
            assert_eq!(need(&base, run).and_then(|()| need(&base, run)).ok(), Some(()));
        }
        let why = kept_for(&base).unwrap();
        assert!(why.contains("one` and 1 more need it"), "{why}");
        fs::rename(&runs[0], place.path().join("moved")).unwrap();
        let why = kept_for(&base).unwrap();
        assert!(why.contains("one`, which is not there now, and 1 more need it"), "{why}");
        fs::remove_file(base.join(NEEDED)).unwrap();
        assert_eq!(kept_for(&base), None);
        let gone = need(&place.path().join("base/step-2"), &runs[1]).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
