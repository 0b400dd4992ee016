//! Where a run starts from: fresh or saved.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::checkpoint::Kept;
use crate::setup::weights::InitialWeights;

/// Parameters and optimizer at the start of an attempt.
#[derive(Debug)]
pub(crate) struct Start {
    /// Steps finished.
    pub(crate) step: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
    /// f32 masters.
    pub(crate) weights: InitialWeights,
    /// Where moments lie; none: zeros.
    pub(crate) moments: Option<Arc<Kept>>,
    /// The step since which they are summed.
    pub(crate) since: u64,
}

impl Start {
    /// Nothing trained yet.
    pub(crate) fn fresh(weights: InitialWeights) -> Start {
        Start { step: 0, tokens: 0, weights, moments: None, since: 0 }
    }

    /// The same weights, and an optimizer that has seen nothing.
    pub(crate) fn anew(self) -> Start {
        Start { moments: None, since: self.step, ..self }
    }
}

/// One thing for every rank to take once: when the last has taken it, it is gone.
#[derive(Debug)]
pub(crate) struct Handout<T> {
    first: usize,
    things: Mutex<Vec<Option<Arc<T>>>>,
}

impl<T> Handout<T> {
    /// For the ranks of this process.
    pub(crate) fn new(thing: T, ranks: Range<usize>) -> Handout<T> {
        let things = Mutex::new(vec![Some(Arc::new(thing)); ranks.len()]);
        Handout { first: ranks.start, things }
    }

    pub(crate) fn take(&self, rank: usize) -> Arc<T> {
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        things[rank - self.first].take().expect("every rank takes once")
    }
}
