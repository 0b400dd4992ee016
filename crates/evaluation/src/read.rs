//! What an evaluation left, read again.

use std::io::ErrorKind;
use std::path::Path;

use annulus_train::{Result, TrainError};
use serde::de::DeserializeOwned;

use crate::{Found, Perplexity};

/// The folder of a run's evaluation, in the run's own.
pub const FOLDER: &str = "evaluation";
/// What an evaluation leaves: losses by length and position, and answers.
pub const RESULTS: [&str; 2] = ["perplexity.json", "tasks.json"];
/// The largest such file that is read, in bytes: it has every answer.
const LARGEST: u64 = 1 << 28;

/// What an evaluation left in its folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// Losses by length and position, where they were asked for.
    pub perplexity: Option<Perplexity>,
    /// Answers, where they were asked for.
    pub tasks: Option<Found>,
}

impl Evaluated {
    /// Reads the results in `folder`: nothing of files that are not there.
    ///
    /// # Errors
    /// A file that cannot be read, or is not as an evaluation writes it.
    pub fn read(folder: &Path) -> Result<Evaluated> {
        let [perplexity, tasks] = RESULTS.map(|name| folder.join(name));
        Ok(Evaluated { perplexity: read(&perplexity)?, tasks: read(&tasks)? })
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let failed = |why: String| TrainError::Unreadable {
        message: format!("`{}`: {why}", path.display()),
        hint: "remove it, or evaluate again: `annulus evaluate RUN`".to_owned(),
    };
    match annulus_files::read(path, LARGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(e.to_string())),
    }
}
