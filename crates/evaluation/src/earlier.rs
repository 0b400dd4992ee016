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

/// Files of one evaluation: their step, the results, and the names of the drawings made of them.
struct Results {
    step: u64,
    file: &'static str,
    drawings: Vec<String>,
}

impl Results {
    /// What is in `folder`; what cannot be read is left where it is, to be replaced.
    fn read(folder: &Path) -> Vec<Results> {
        let Evaluated { perplexity, conversations, tasks } =
            Evaluated::read(folder).unwrap_or_default();
        let [of_losses @ .., of_tasks] = PICTURES;
        let losses = perplexity.map(|found| Results {
            step: found.step,
            file: RESULTS[0],
            drawings: of_losses.map(str::to_owned).to_vec(),
        });
        let chats = conversations.map(|found| Results {
            step: found.step,
            file: RESULTS[1],
            drawings: Vec::new(),
        });
        let answers = tasks.map(|found| Results {
            step: found.step,
            file: RESULTS[2],
            drawings: found.tasks().into_iter().chain([of_tasks]).map(str::to_owned).collect(),
        });
        losses.into_iter().chain(chats).chain(answers).collect()
    }

    /// Moves them to another folder, where they replace what is there.
    fn move_to(&self, from: &Path, to: &Path) -> io::Result<()> {
        let drawings = self.drawings.iter();
        let drawings = drawings.flat_map(|name| ["svg", "png"].map(|end| format!("{name}.{end}")));
        // The results last: a move that was cut short is begun again by them.
        for name in drawings.chain([self.file.to_owned()]) {
            match fs::rename(from.join(&name), to.join(&name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Where results in `folder` are kept if a checkpoint of `step` is evaluated into it; `None` if there are none, or they are of the same step
/// and thus replaced.
pub fn kept_in(folder: &Path, step: u64) -> Option<PathBuf> {
    let others = others(folder, step);
    others.first().map(|earlier| folder.join(name(earlier.step)))
}

/// Results of other steps in `folder`, which is not a run's own folder.
fn others(folder: &Path, step: u64) -> Vec<Results> {
    let mut results = Results::read(folder);
    results.retain(|earlier| earlier.step != step && !is_run(folder));
    results
}

/// Makes `folder` that of `step`: what it has of another step moves to a folder of its own, and what was kept of this step comes back.
pub(crate) fn settle(folder: &Path, step: u64) -> io::Result<()> {
    for earlier in others(folder, step) {
        let kept = annulus_files::subfolder(folder, &name(earlier.step))?;
        earlier.move_to(folder, &kept)?;
    }
    let own = folder.join(name(step));
    if !is_run(folder) && own.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        Results::read(&own).iter().try_for_each(|kept| kept.move_to(&own, folder))?;
        // Fails, rightly, where the folder holds anything else.
        let _ = fs::remove_dir(&own);
    }
    Ok(())
}

fn name(step: u64) -> String {
    format!("step-{step}")
}
