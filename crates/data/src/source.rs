//! Sequences by step: what a training run reads.

use std::fmt::Debug;

use crate::{Cache, DataError};

/// The sequences of a step, as a pure function of the step: nothing to save, nothing to replay.
pub trait Source: Send + Sync + Debug {
    /// The sequences of step `step` (from 0): `batch` of them, each `tokens + 1` long and with targets of `tokens`.
    fn batch(&self, step: u64) -> Result<Vec<crate::Sequence>, DataError>;
    /// How many different batches there are; `None`: no end.
    fn batches(&self) -> Option<u64>;
    /// A hash of everything the sequences depend on but the step.
    fn fingerprint(&self) -> String;
    /// One past the largest id that may come.
    fn vocabulary(&self) -> usize;
}

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
    _cache: std::sync::Arc<Cache>,
}

impl Windows {
    /// Windows of `tokens + 1`, overlapping by one, of the part `window`. Training: epoch `e` has its own random offset
    /// and a Feistel permutation of its windows, both from (seed, e).
    pub fn new(
        _cache: std::sync::Arc<Cache>,
        _window: Window,
        _held_out: u64,
        _tokens: usize,
        _batch: usize,
        _seed: u64,
    ) -> Result<Windows, DataError> {
        todo!()
    }
}

impl Source for Windows {
    fn batch(&self, _step: u64) -> Result<Vec<crate::Sequence>, DataError> {
        todo!()
    }
    fn batches(&self) -> Option<u64> {
        todo!()
    }
    fn fingerprint(&self) -> String {
        todo!()
    }
    fn vocabulary(&self) -> usize {
        todo!()
    }
}
