//! Windows of a cache: the text cut into sequences, in an order drawn anew each epoch.
//!
//! Windows of `tokens + 1` ids overlap by one, so that every token but the first is a target once.
//! Which window a step reads is a pure function of (seed, step): an epoch's order is a permutation
//! that is computed, not stored.

use std::ops::Range;
use std::sync::Arc;

use annulus_sequence::Positions;

use crate::random::Key;
use crate::reader::Reader;
use crate::{Cache, DataError, Source, Tokens};

/// Which part of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// All but the last `held_out` tokens: for training, in an order shuffled anew each epoch.
    Train,
    /// The last `held_out` tokens, in order: for evaluation.
    HeldOut,
}

/// Windows of `tokens + 1` tokens of a cache.
#[derive(Debug)]
pub struct Windows {
    cache: Arc<Cache>,
    window: Window,
    /// The first token of the part.
    start: u64,
    /// How many tokens the part has.
    length: u64,
    /// How many windows an epoch has.
    count: u64,
    tokens: u64,
    batch: u64,
    seed: u64,
}

impl Windows {
    /// Windows of `tokens + 1`, overlapping by one, of the part `window`.
    ///
    /// Training goes on for ever: epoch `e` has its own random offset below `tokens` and its own
    /// permutation of its windows, both from (`seed`, `e`). What is held out comes in whole batches
    /// in order, from the first token held out; what is left over is not read.
    ///
    /// # Errors
    /// Fewer tokens than a batch needs.
    pub fn new(
        cache: Arc<Cache>,
        window: Window,
        held_out: u64,
        tokens: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Windows, DataError> {
        for (what, found) in [("data.tokens", tokens), ("data.batch", batch)] {
            if found == 0 {
                return Err(DataError::TooFew { what, found, wanted: 1 });
            }
        }
        let (all, tokens, batch) = (cache.tokens(), tokens as u64, batch as u64);
        let (part, start, length, wanted) = match window {
            Window::Train => {
                let length = all.saturating_sub(held_out);
                let part = if length == 0 && all > 0 {
                    "all of the text is held out"
                } else {
                    "the text without what is held out"
                };
                (part, 0, length, tokens.saturating_add(1))
            }
            Window::HeldOut => {
                let wanted = tokens.saturating_mul(batch).saturating_add(1);
                ("the text held out", all.saturating_sub(held_out), held_out.min(all), wanted)
            }
        };
        if length < wanted {
            return Err(DataError::TooShort { part, found: length, wanted });
        }
        let count = match window {
            // As many as fit whatever the epoch's offset is, so that all epochs have as many.
            Window::Train => ((length - tokens) / tokens).max(1),
            Window::HeldOut => (length - 1) / tokens,
        };
        Ok(Windows { cache, window, start, length, count, tokens, batch, seed })
    }

    /// How many windows an epoch has.
    pub fn windows(&self) -> u64 {
        self.count
    }

    /// The first token of the `index`-th window ever read.
    fn first(&self, index: u128) -> u64 {
        let (epoch, index) =
            ((index / u128::from(self.count)) as u64, (index % u128::from(self.count)) as u64);
        match self.window {
            Window::HeldOut => self.start + index * self.tokens,
            Window::Train => {
                let key = Key::new("annulus windows of an epoch", &[self.seed, epoch]);
                let slack = self.length - 1 - self.count * self.tokens;
                let offset = key.draws().below(slack.min(self.tokens - 1) + 1);
                self.start + offset + key.permute(index, self.count) * self.tokens
            }
        }
    }

    /// Appends the tokens at `positions` of the window that begins at `start` to `into`, each with the one behind it.
    fn window(
        &self,
        start: u64,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let end = start + positions.extent().end as u64 + 1;
        let mut reader = Reader::new(&self.cache, self.tokens, end);
        for position in positions.iter() {
            let [id, next] = reader.pair(start + position as u64)?;
            into.inputs.push(id);
            into.targets.push(i64::from(next));
        }
        into.documents.push(self.cache.documents_in(start..start + self.tokens));
        Ok(())
    }
}

impl Source for Windows {
    fn rows(&self) -> usize {
        self.batch as usize
    }

    fn tokens(&self) -> usize {
        self.tokens as usize
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        if let Some(batches) = self.batches().filter(|&batches| step >= batches) {
            return Err(DataError::End { step, batches });
        }
        let first = u128::from(step) * u128::from(self.batch);
        for row in rows {
            let start = self.first(first + row as u128);
            self.window(start, positions, into)?;
        }
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        match self.window {
            Window::Train => None,
            Window::HeldOut => Some(self.count / self.batch),
        }
    }

    fn fingerprint(&self) -> String {
        let numbers = [self.start, self.length, self.tokens, self.batch, self.seed];
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?} of {}", self.window, self.cache.fingerprint()).as_bytes());
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    fn vocabulary(&self) -> usize {
        self.cache.vocabulary()
    }
}
