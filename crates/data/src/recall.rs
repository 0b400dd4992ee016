//! A synthetic task of long-range recall: keys and values early, questions late; the answer lives on another rank.

use crate::{DataError, Sequence, Source};

/// The recall task.
#[derive(Debug)]
pub struct Recall {}

impl Recall {
    /// Sequences of `tokens` ids; only answers are targets. Different `seed`s give different sequences.
    pub fn new(_tokens: usize, _batch: usize, _seed: u64) -> Result<Recall, DataError> {
        todo!()
    }
}

impl Source for Recall {
    fn batch(&self, _step: u64) -> Result<Vec<Sequence>, DataError> {
        todo!()
    }
    fn batches(&self) -> Option<u64> {
        None
    }
    fn fingerprint(&self) -> String {
        todo!()
    }
    fn vocabulary(&self) -> usize {
        todo!()
    }
}
