//! Reads back the results of an evaluation.

use std::io::ErrorKind;
use std::path::Path;

use annulus_train::{Result, TrainError};
use serde::de::DeserializeOwned;

use crate::{Conversations, Perplexity, TaskResults};

/// The folder of an evaluation, within its run's.
pub const FOLDER: &str = "evaluation";
/// Result files of an evaluation: losses by length and position, conversations, and answers.
pub const RESULTS: [&str; 3] = ["perplexity.json", "conversations.json", "tasks.json"];
/// The largest result file that is read, in bytes: it has every answer.
const LARGEST: u64 = 1 << 28;

/// The results in an evaluation's folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// Losses by length and position; `None`: not measured.
    pub perplexity: Option<Perplexity>,
    /// The loss and answers of conversations; `None`: there were none.
    pub conversations: Option<Conversations>,
    /// Answers; `None`: no task was given.
    pub tasks: Option<TaskResults>,
}

impl Evaluated {
    /// Reads the results in `folder`; missing files leave their field empty.
    ///
    /// # Errors
    /// A file that cannot be read, or is not as an evaluation writes it.
    pub fn read(folder: &Path) -> Result<Evaluated> {
        let [perplexity, conversations, tasks] = RESULTS.map(|name| folder.join(name));
        Ok(Evaluated {
            perplexity: read(&perplexity)?,
            conversations: read(&conversations)?,
            tasks: read(&tasks)?,
        })
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let failed = |why: String| {
        TrainError::unreadable(
            format!("`{}`: {why}", path.display()),
            "remove it, or evaluate again: `annulus evaluate RUN`",
        )
    };
    match annulus_files::read(path, LARGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(e.to_string())),
    }
}
