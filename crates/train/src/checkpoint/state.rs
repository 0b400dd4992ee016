//! The loop's state in a checkpoint.

use std::io;
use std::path::Path;

use annulus_experiment::{Experiment, Shape, parse, parse_config};
use serde::{Deserialize, Serialize};

use crate::{Result, TrainError};

/// The file with the loop's state in a checkpoint.
pub(crate) const STATE: &str = "state.json";
/// The format of checkpoints that this version writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 1;
/// The largest `state.json` that is read, in bytes: it holds an experiment.
const LARGEST: u64 = 1 << 24;

/// The content of `state.json`. Random numbers and the data's order are functions of the seed and the step, so there is nothing else to
/// keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The version of the format.
    pub(crate) version: u32,
    /// Steps finished.
    pub(crate) step: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
    /// The step since which moments are accumulated; `None` in older checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moments: Option<u64>,
    /// The data's fingerprint.
    pub(crate) data: String,
    /// The resolved experiment, as YAML.
    pub(crate) experiment: String,
    /// What the model's folder said of its shape, as the text of a config.json; `None` where the experiment says it, and in older
    /// checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// The hash of the base weights beside which adapters lie; they are not in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<String>,
}

impl State {
    /// Reads `state.json` in `folder`, whatever its version.
    ///
    /// # Errors
    /// A file that cannot be read, with the error of the system; one that is too large or no state, with an error of none.
    pub(crate) fn read(folder: &Path) -> io::Result<State> {
        let text = annulus_files::read(&folder.join(STATE), LARGEST)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The experiment that was trained, with all its phases.
    ///
    /// # Errors
    /// An experiment of another version, which this one does not understand.
    pub(crate) fn experiment(&self) -> Result<Experiment> {
        parse(STATE, &self.experiment, &[]).map_err(|problems| {
            TrainError::checkpoint(
                format!("the checkpoint's experiment cannot be read:\n{problems}"),
                "it was written by another version: set another `output`",
            )
        })
    }

    /// The shape of the model that [`model_text`](super::identity::model_text) wrote down; `None`: the experiment says it, or an earlier
    /// version wrote the checkpoint.
    ///
    /// # Errors
    /// A text that is no config.json of a model.
    pub(crate) fn model(&self) -> Result<Option<Shape>> {
        let read = |text: &String| parse_config("the `model` of state.json", text);
        Ok(self.model.as_ref().map(read).transpose()?)
    }
}
