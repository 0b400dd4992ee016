//! Checkpoints: `step-N/`, a Hugging Face folder, or PEFT's with adapters alone, with what the optimizer and the loop need beside
//! it.
//!
//! ```text
//! unfinished folder: files, as long as they will be -> all ranks' shares in them, synced -> hashes.json -> renamed to step-N
//!     -> LATEST, replaced whole
//! ```
//! A folder exists whole or not at all, and is believed only if every file has the size and hash
//! that `hashes.json` says. Nothing in it depends on how many ranks there were or how the sequence
//! was split.

mod copied;
mod gathered;
mod hashes;
mod read;
mod slices;
mod tokenizer;
mod write;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub(crate) use copied::Copied;
pub(crate) use gathered::Gathered;
pub(crate) use read::{
    Found, Kept, beside, is_checkpoint, load, named_by, newest, opened, weights,
};
pub(crate) use slices::{Contents, Piece, Slices};
pub(crate) use tokenizer::missing;
pub(crate) use write::{Layouts, Unfinished, point, prune, save, unwritten};

/// The loop's part of a checkpoint.
pub(crate) const STATE: &str = "state.json";
/// The optimizer's part.
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
/// What every other file must be.
pub(crate) const HASHES: &str = "hashes.json";
/// Names the newest checkpoint, for people and scripts.
pub(crate) const LATEST: &str = "LATEST";
/// The format that this version writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 1;

/// `state.json`. Random numbers and the data's order are functions of the seed and the step: there
/// is nothing else to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Of this format.
    pub(crate) version: u32,
    /// Steps finished.
    pub(crate) step: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
    /// The step since which moments are summed; older ones do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moments: Option<u64>,
    /// The data's fingerprint.
    pub(crate) data: String,
    /// The resolved experiment, as YAML.
    pub(crate) experiment: String,
    /// The hash of the weights beside which adapters lie; they are not in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<String>,
}

/// The step of the newest checkpoint in a run's folder, which a run goes on from if it is whole.
pub fn last_checkpoint(output: &Path) -> Option<u64> {
    steps(output).ok()?.last().copied()
}

/// The step of a folder named `step-N`.
fn step_of(folder: &Path) -> Option<u64> {
    let digits = folder.file_name()?.to_str()?.strip_prefix("step-")?;
    // `step-07` and `step-+7` are not ours.
    digits.parse().ok().filter(|step: &u64| step.to_string() == digits)
}

/// The steps that have a folder in `output`, rising; an error where something else has such a name.
pub(crate) fn steps(output: &Path) -> std::io::Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in std::fs::read_dir(output)? {
        let path = entry?.path();
        let Some(step) = step_of(&path) else { continue };
        // A checkpoint would be written there, after hours.
        if !path.is_dir() {
            let message = format!("`step-{step}` is no folder, and no link to one: remove it");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, message));
        }
        steps.push(step);
    }
    steps.sort_unstable();
    Ok(steps)
}
