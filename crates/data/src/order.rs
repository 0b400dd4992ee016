//! The order in which a part of the data is read: what is held out as it lies there, what is trained on shuffled anew each epoch.
//!
//! A permutation is computed, not stored, so which items a step reads is a function of (seed, step).

use std::ops::Range;

use crate::DataError;
use crate::random::Key;
use crate::windows::Window;

/// Items of a part of the data, in the order in which they are read.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) window: Window,
    /// What an epoch's draws are for.
    pub(crate) purpose: &'static str,
    /// How many items an epoch has.
    pub(crate) count: u64,
    pub(crate) batch: u64,
    pub(crate) seed: u64,
}

impl Order {
    /// How many batches there are; `None`: training has no end.
    pub(crate) fn batches(&self) -> Option<u64> {
        match self.window {
            Window::Train => None,
            Window::HeldOut => Some(self.count / self.batch),
        }
    }

    /// How many items an epoch has; `None`: they come once.
    pub(crate) fn epoch(&self) -> Option<u64> {
        (self.window == Window::Train).then_some(self.count)
    }

    /// The items of `rows` of step `step`, each with the key of its epoch, if it is trained on.
    ///
    /// # Errors
    /// A step behind the last batch.
    pub(crate) fn items(
        &self,
        step: u64,
        rows: Range<usize>,
    ) -> Result<impl Iterator<Item = (u64, Option<Key>)>, DataError> {
        if let Some(batches) = self.batches().filter(|&batches| step >= batches) {
            return Err(DataError::End { step, batches });
        }
        let first = u128::from(step) * u128::from(self.batch);
        Ok(rows.map(move |row| self.item(first + row as u128)))
    }

    /// The `index`-th item ever read.
    fn item(&self, index: u128) -> (u64, Option<Key>) {
        let count = u128::from(self.count);
        let (epoch, index) = ((index / count) as u64, (index % count) as u64);
        match self.window {
            Window::HeldOut => (index, None),
            Window::Train => {
                let key = Key::new(self.purpose, &[self.seed, epoch]);
                (key.permute(index, self.count), Some(key))
            }
        }
    }

    /// A hash of `what` is read and of numbers.
    pub(crate) fn fingerprint(what: &str, numbers: [u64; 5]) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(what.as_bytes());
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}
