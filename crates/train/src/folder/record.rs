//! What a run has logged so far, tag by tag.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::folder::line::Line;
use crate::folder::manifest::StateHash;

/// First and last value by tag and the step of the last, the losses, the newest checkpoint, the state's hash, and warnings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) first: BTreeMap<String, f64>,
    pub(crate) last: BTreeMap<String, f64>,
    pub(crate) logged_at: BTreeMap<String, u64>,
    pub(crate) losses: Vec<(u64, f64)>,
    pub(crate) checkpoint: Option<PathBuf>,
    pub(crate) state: Option<StateHash>,
    /// What went wrong while it was recorded, but did not end the run.
    pub(crate) warnings: Vec<String>,
}

impl Record {
    /// The record of earlier attempts, from their `lines`.
    pub(crate) fn of(lines: &[Line]) -> Record {
        let mut record = Record::default();
        for line in lines {
            for (tag, value) in &line.values {
                record.note(tag, line.step, value.most());
            }
        }
        record
    }

    pub(crate) fn note(&mut self, tag: &str, step: u64, value: f64) {
        self.first.entry(tag.to_owned()).or_insert(value);
        self.last.insert(tag.to_owned(), value);
        self.logged_at.insert(tag.to_owned(), step);
    }
}
