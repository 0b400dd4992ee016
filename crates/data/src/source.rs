//! Sequences by step: what a training run reads.

use std::fmt::Debug;

use crate::{DataError, Sequence};

/// The sequences of a step, as a pure function of the step: nothing to save, nothing to replay.
pub trait Source: Send + Sync + Debug {
    /// The sequences of step `step` (from 0): `batch` of them, each with `tokens` inputs and as many
    /// targets.
    ///
    /// # Errors
    /// Data that has changed or cannot be read any more, and steps beyond the last batch.
    fn batch(&self, step: u64) -> Result<Vec<Sequence>, DataError>;
    /// How many different batches there are; `None`: no end.
    fn batches(&self) -> Option<u64>;
    /// A hash of everything the sequences depend on but the step.
    fn fingerprint(&self) -> String;
    /// One past the largest id that may come.
    fn vocabulary(&self) -> usize;
}
