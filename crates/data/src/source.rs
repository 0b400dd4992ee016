//! Sequences by step: what a training run reads.

use std::fmt::Debug;
use std::ops::Range;

use annulus_sequence::Positions;

use crate::{DataError, Origin, Sequence, Tokens};

/// The sequences of a step, as a pure function of the step: nothing to save, nothing to replay.
///
/// A rank reads the rows and positions that are its own; what is read besides, to find or to check them, is held a bounded block
/// at a time.
pub trait Source: Send + Sync + Debug {
    /// How many sequences a batch has: its rows.
    fn rows(&self) -> usize;
    /// How many inputs a sequence has, and as many targets.
    fn tokens(&self) -> usize;
    /// Appends rows `rows` of step `step` (from 0) at `positions` to `into`: also the lengths of all documents in each row, padding
    /// included, or an empty list for one document.
    ///
    /// A rank that reads is not known to be alive: one that reads for longer than `mesh.deadline` ends the run, so that a disk that hangs is
    /// found. What takes long is made ready before, or the deadline raised.
    ///
    /// # Errors
    /// Data that has changed or cannot be read any more, and steps beyond the last batch; [`DataError::Other`] for all else.
    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError>;
    /// How many different batches there are; `None`: no end.
    fn batches(&self) -> Option<u64>;
    /// How many different sequences are read before any comes again; `None`: all are new, or several sources have epochs of their own.
    fn epoch(&self) -> Option<u64> {
        None
    }
    /// A hash of everything the sequences depend on but the step.
    fn fingerprint(&self) -> String;
    /// One past the largest id that may come.
    fn vocabulary(&self) -> usize;

    /// What sequence `row` of step `step` was made of; `None`: it is made up, or was given ready-made. For inspection.
    ///
    /// # Errors
    /// Steps beyond the last batch.
    fn origin(&self, step: u64, row: usize) -> Result<Option<Origin>, DataError> {
        let _ = (step, row);
        Ok(None)
    }

    /// All sequences of step `step`, whole; for inspection.
    ///
    /// # Errors
    /// Those of [`Source::read`].
    fn batch(&self, step: u64) -> Result<Vec<Sequence>, DataError> {
        let all = Positions::all(self.tokens());
        let whole = |row| {
            let mut one = Tokens::with_room(1, &all);
            self.read(step, row..row + 1, &all, &mut one)?;
            let documents = one.documents.pop().unwrap_or_default();
            Ok(Sequence { inputs: one.inputs, targets: one.targets, documents })
        };
        (0..self.rows()).map(whole).collect()
    }
}
