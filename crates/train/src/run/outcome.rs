//! The result of an attempt.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::error::failure;
use crate::folder::lines::read_lines;
use crate::folder::record::Record;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The last step was reached.
    Finished,
    /// The attempt was asked to stop; the finished steps are saved.
    Preempted,
    /// An earlier attempt had finished the run.
    AlreadyFinished,
}

/// The result of an attempt.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the attempt ended.
    pub ending: Ending,
    /// Steps finished and, unless 0, saved.
    pub step: u64,
    /// The step that the attempt resumed from.
    pub resumed_from: Option<u64>,
    /// The step (from 1) and loss of every step of this attempt.
    pub losses: Vec<(u64, f64)>,
    /// The first value of every tag, earlier attempts included.
    pub first: BTreeMap<String, f64>,
    /// The last value of every tag.
    pub last: BTreeMap<String, f64>,
    /// The step at which it was logged.
    pub logged_at: BTreeMap<String, u64>,
    /// The run's folder.
    pub folder: PathBuf,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Warnings: what was wrong but did not end the run, and a sink that failed.
    pub warnings: Vec<String>,
}

impl Outcome {
    /// The outcome, before the first step, of a run whose folder another process writes.
    pub(crate) fn of_another(folder: &Path) -> Outcome {
        Outcome {
            ending: Ending::Preempted,
            step: 0,
            resumed_from: None,
            losses: Vec::new(),
            first: BTreeMap::new(),
            last: BTreeMap::new(),
            logged_at: BTreeMap::new(),
            folder: folder.to_owned(),
            checkpoint: None,
            warnings: Vec::new(),
        }
    }

    /// The outcome, before the first step, of a run in `folder`, with what earlier attempts logged.
    pub(crate) fn at(folder: &Path) -> Result<Outcome> {
        let lines = read_lines(folder).map_err(|e| failure("read", folder, &e))?;
        let Record { first, last, logged_at, .. } = Record::of(&lines);
        Ok(Outcome { first, last, logged_at, ..Outcome::of_another(folder) })
    }
}
