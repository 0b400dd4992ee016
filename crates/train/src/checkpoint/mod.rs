//! Checkpoints: `step-N/`, a Hugging Face folder (or PEFT's, of adapters alone) with what the optimizer and the loop need beside it.
//!
//! ```text
//! unfinished folder: files, at their full length -> all ranks' shares in them, synced -> hashes.json -> renamed to step-N
//!     -> LATEST, replaced whole
//! ```
//! A folder exists whole or not at all, and is trusted only if every file has the size and hash that `hashes.json` says. Nothing in it
//! depends on how many ranks there were or how the sequence was split.

mod best;
mod contents;
mod hashes;
pub(crate) mod identity;
mod needed;
mod read;
mod state;
mod templates;
mod texts;
mod tokenizer;
mod write;

use std::path::{Path, PathBuf};

pub use best::best_checkpoint;
pub(crate) use contents::{Contents, OptimizerTensor, Piece};
pub(crate) use hashes::is_part;
pub use needed::need;
pub(crate) use read::{Found, Kept, beside, is_checkpoint, named_by, newest, opened};
pub(crate) use state::{STATE, State, VERSION};
pub(crate) use templates::templates;
pub(crate) use texts::Texts;
pub(crate) use tokenizer::{for_both_versions, missing};
pub(crate) use write::{Layouts, Pruned, Retention, Unfinished, point, prune, save, unwritten_in};

/// The file with the optimizer's state in a checkpoint.
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
/// The file with size and hash of every other file of a checkpoint.
pub(crate) const HASHES: &str = "hashes.json";
/// The file in a run's folder that names the newest checkpoint, for people and scripts.
pub(crate) const LATEST: &str = "LATEST";

/// The step of the newest checkpoint in a run's folder, from which the run resumes if it is whole.
pub fn last_checkpoint(output: &Path) -> Option<u64> {
    steps(output).ok()?.last().copied()
}

/// The folder of the checkpoint of `step` in a run's folder.
pub fn checkpoint_folder(output: &Path, step: u64) -> PathBuf {
    output.join(format!("step-{step}"))
}

/// The step of a folder named `step-N`.
pub fn step_of(folder: &Path) -> Option<u64> {
    let digits = folder.file_name()?.to_str()?.strip_prefix("step-")?;
    // `step-07` and `step-+7` are not names that a run gives.
    digits.parse().ok().filter(|step: &u64| step.to_string() == digits)
}

/// The steps that have a folder in `output`, rising; an error where something other than a folder has such a name.
pub(crate) fn steps(output: &Path) -> std::io::Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in std::fs::read_dir(output)? {
        let path = entry?.path();
        let Some(step) = step_of(&path) else { continue };
        // Otherwise writing a checkpoint there would fail, after hours.
        if !path.is_dir() {
            let message = format!("`step-{step}` is neither a folder nor a link to one: remove it");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message));
        }
        steps.push(step);
    }
    steps.sort_unstable();
    Ok(steps)
}
