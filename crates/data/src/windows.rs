//! Windows of a cache: the text cut into sequences, in an order drawn anew each epoch.
//!
//! Windows of `tokens + 1` ids overlap by one, so that every token but the first is a target once.
//! Which window a step reads is a pure function of (seed, step).

use std::ops::Range;
use std::sync::Arc;

use annulus_sequence::Positions;

use crate::order::Order;
use crate::origin::extracts;
use crate::random::Key;
use crate::reader::Reader;
use crate::{Cache, DataError, Origin, Source, Tokens};

/// The part of a cache that is read.
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
    /// The first token of the part.
    start: u64,
    /// How many tokens the part has.
    length: u64,
    tokens: u64,
    order: Order,
}

impl Windows {
    /// Windows of `tokens + 1`, overlapping by one, of the part `window`.
    ///
    /// Training goes on for ever: epoch `e` has its own random offset, up to the last at which its windows fit, and
    /// its own permutation of them, both from (`seed`, `e`). What is held out comes in whole batches
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
        let before = all.saturating_sub(held_out);
        let (start, length, wanted) = match window {
            Window::Train => (0, before, tokens.saturating_add(1)),
            Window::HeldOut => {
                (before, held_out.min(all), tokens.saturating_mul(batch).saturating_add(1))
            }
        };
        if length < wanted {
            let (found, held_out) = match window {
                Window::Train => (all, held_out),
                Window::HeldOut => (length, 0),
            };
            return Err(DataError::TooShort { found, is_most: false, held_out, wanted });
        }
        let count = match window {
            // As many as fit whatever the epoch's offset is, so that all epochs have as many.
            Window::Train => ((length - tokens) / tokens).max(1),
            Window::HeldOut => (length - 1) / tokens,
        };
        let order = Order { window, purpose: "annulus windows of an epoch", count, batch, seed };
        Ok(Windows { cache, start, length, tokens, order })
    }

    /// How many windows an epoch has.
    pub fn windows(&self) -> u64 {
        self.order.count
    }

    /// The largest offset of an epoch's windows: what they leave of the part, which is more than a window where its
    /// length is no multiple of theirs.
    fn slack(&self) -> u64 {
        self.length - 1 - self.order.count * self.tokens
    }

    /// The offset of an epoch's windows.
    fn offset(&self, epoch: &Key) -> u64 {
        epoch.draws().below(self.slack() + 1)
    }

    /// Where the `index`-th window of an epoch begins.
    fn place(&self, index: u64, epoch: Option<Key>) -> u64 {
        let offset = epoch.map_or(0, |epoch| self.offset(&epoch));
        self.start + offset + index * self.tokens
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
        self.order.batch as usize
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
        for (index, epoch) in self.order.items(step, rows)? {
            self.window(self.place(index, epoch), positions, into)?;
        }
        Ok(())
    }

    fn origin(&self, step: u64, row: usize) -> Result<Option<Origin>, DataError> {
        let item = self.order.items(step, row..row + 1)?.next();
        Ok(item.map(|(index, epoch)| {
            let start = self.place(index, epoch);
            let extracts = extracts(self.cache.documents(), start..start + self.tokens);
            Origin { source: 0, extracts }
        }))
    }

    fn batches(&self) -> Option<u64> {
        self.order.batches()
    }

    fn epoch(&self) -> Option<u64> {
        self.order.epoch()
    }

    fn fingerprint(&self) -> String {
        let Order { window, batch, seed, .. } = self.order;
        // Older versions drew offsets below a window's length, and so others where there is more to draw from.
        let is_other = window == Window::Train && self.slack() >= self.tokens;
        let offsets = if is_other { " from all offsets" } else { "" };
        let what = format!("{window:?}{offsets} of {}", self.cache.fingerprint());
        Order::fingerprint(&what, [self.start, self.length, self.tokens, batch, seed])
    }

    fn vocabulary(&self) -> usize {
        self.cache.vocabulary()
    }
}
