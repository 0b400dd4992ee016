//! The state that an attempt starts from: fresh or saved.

use std::ops::Range;
use std::sync::Arc;

use annulus_experiment::{Experiment, PhaseStart};
use parking_lot::Mutex;

use crate::checkpoint::Kept;
use crate::setup::weights::InitialWeights;

/// Parameters and optimizer at the start of an attempt.
#[derive(Debug)]
pub(crate) struct Start {
    /// Steps finished.
    pub(crate) step: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
    /// The weights; trained ones f32, as masters.
    pub(crate) weights: InitialWeights,
    /// The file with the moments; `None`: they are zeros.
    pub(crate) moments: Option<Arc<Kept>>,
    /// The step since which moments are accumulated.
    pub(crate) since: u64,
}

impl Start {
    /// The start of `experiment` with weights of its own and a fresh optimizer; of a later phase, as if the phases before it had trained
    /// nothing.
    pub(crate) fn fresh(experiment: &Experiment, weights: InitialWeights) -> Start {
        let PhaseStart { steps, tokens, .. } = experiment.phase_start();
        Start { step: steps.start, tokens, weights, moments: None, since: steps.start }
    }

    /// The same weights with a fresh optimizer.
    pub(crate) fn anew(self) -> Start {
        Start { moments: None, since: self.step, ..self }
    }
}

/// A value that every rank takes once; when the last has taken it, it is dropped.
#[derive(Debug)]
pub(crate) struct Handout<T> {
    first: usize,
    things: Mutex<Vec<Option<Arc<T>>>>,
}

impl<T> Handout<T> {
    /// A handout for the ranks of this process.
    pub(crate) fn new(thing: T, ranks: Range<usize>) -> Handout<T> {
        let things = Mutex::new(vec![Some(Arc::new(thing)); ranks.len()]);
        Handout { first: ranks.start, things }
    }

    pub(crate) fn take(&self, rank: usize) -> Arc<T> {
        let mut things = self.things.lock();
        things[rank - self.first].take().expect("every rank takes once")
    }
}
