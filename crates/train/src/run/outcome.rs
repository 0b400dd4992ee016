//! What an attempt came to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::run::folder::failure;
use crate::run::lines::read_lines;
use crate::run::metrics::Record;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The last step is done.
    Finished,
    /// It was asked to stop; what was finished is saved.
    Preempted,
    /// It had been finished before.
    AlreadyFinished,
}

/// What an attempt came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// Steps finished and, unless 0, saved.
    pub step: u64,
    /// The step it went on from.
    pub resumed_from: Option<u64>,
    /// (step from 1, loss) of every step of this attempt.
    pub losses: Vec<(u64, f64)>,
    /// The first value by tag, earlier attempts included.
    pub first: BTreeMap<String, f64>,
    /// The last value by tag.
    pub last: BTreeMap<String, f64>,
    /// The run's folder.
    pub folder: PathBuf,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// What was wrong but did not end the run.
    pub warnings: Vec<String>,
}

impl Outcome {
    /// Of a run whose folder another process keeps, before its first step.
    pub(crate) fn of_another(folder: &Path) -> Outcome {
        Outcome {
            ending: Ending::Preempted,
            step: 0,
            resumed_from: None,
            losses: Vec::new(),
            first: BTreeMap::new(),
            last: BTreeMap::new(),
            folder: folder.to_owned(),
            checkpoint: None,
            warnings: Vec::new(),
        }
    }

    /// Of a run that has not got anywhere yet, except in earlier attempts.
    pub(crate) fn at(folder: &Path) -> Result<Outcome> {
        let lines = read_lines(folder).map_err(|e| failure("read", folder, &e))?;
        let Record { first, last, .. } = Record::of(&lines);
        Ok(Outcome { first, last, ..Outcome::of_another(folder) })
    }
}
