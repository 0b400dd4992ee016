//! Synthetic data: every sequence is made up of its seed, step and row alone.

use std::ops::Range;

use annulus_sequence::Positions;

use crate::random::{Draws, Key};
use crate::recall::{FILLER, KEYS, VALUES};
use crate::shard::Row;
use crate::{DataError, Source, Tokens, needles, recall};

/// Given its length and the value of every key, fills a sequence.
type Tell = fn(usize, [usize; KEYS], Draws, Row<'_>);

/// What sequences are made up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synthetic {
    /// Facts early, questions late (`recall.rs`).
    Recall,
    /// Facts and questions at random places (`needles.rs`).
    Needles,
}

/// Sequences that are made up; only answers are targets.
#[derive(Debug)]
pub struct MadeUp {
    by: Synthetic,
    tokens: usize,
    batch: usize,
    seed: u64,
}

impl MadeUp {
    /// Sequences of `tokens` ids. Different `seed`s give different sequences.
    ///
    /// # Errors
    /// Too few tokens for a question, or an empty batch.
    pub fn new(by: Synthetic, tokens: usize, batch: usize, seed: u64) -> Result<MadeUp, DataError> {
        let fewest = match by {
            Synthetic::Recall => recall::FEWEST,
            Synthetic::Needles => needles::FEWEST,
        };
        for (what, found, wanted) in [("data.tokens", tokens, fewest), ("data.batch", batch, 1)] {
            if found < wanted {
                return Err(DataError::TooFew { what, found, wanted });
            }
        }
        Ok(MadeUp { by, tokens, batch, seed })
    }

    fn sequence(&self, step: u64, row: u64, positions: &Positions, into: &mut Tokens) {
        let (purpose, tell): (_, Tell) = match self.by {
            Synthetic::Recall => ("annulus recall", recall::tell),
            Synthetic::Needles => ("annulus needles", needles::tell),
        };
        let mut draws = Key::new(purpose, &[self.seed, step, row]).draws();
        let values = std::array::from_fn(|_| draws.below(VALUES as u64) as usize);
        tell(self.tokens, values, draws, into.begin(positions, FILLER as u32));
    }
}

impl Source for MadeUp {
    fn rows(&self) -> usize {
        self.batch
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        rows.for_each(|row| self.sequence(step, row as u64, positions, into));
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        None
    }

    fn fingerprint(&self) -> String {
        let name = match self.by {
            Synthetic::Recall => "recall",
            Synthetic::Needles => "needles",
        };
        format!("{name} 1: {} tokens, {} a batch, seed {}", self.tokens, self.batch, self.seed)
    }

    fn vocabulary(&self) -> usize {
        FILLER + 1
    }
}
