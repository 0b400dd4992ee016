//! How many elements a model has, and how many of them are trained.

use annulus_architecture::Besides;

use super::F32;
use crate::Plan;

/// What is summed beside the gradients: the sum of losses and the count of targets, f64.
const LOSS_AND_TARGETS: u64 = 2 * 8;

/// Elements of parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Of all, adapters included.
    pub(crate) all: u64,
    /// Of those that are trained.
    pub(crate) trained: u64,
    /// Of the largest that is trained.
    pub(crate) largest: u64,
    /// Whether the last projection is trained.
    pub(crate) head: bool,
}

impl Plan {
    /// Elements of its parameters.
    pub(crate) fn counts(&self) -> Counts {
        let (shape, all) = (&self.shape, self.shape.elements());
        let Some(lora) = &self.experiment.lora else {
            return Counts { all, trained: all, largest: shape.largest_parameter(), head: true };
        };
        let [rank, layers, hidden, vocabulary] =
            [lora.rank, shape.num_hidden_layers, shape.hidden_size, self.vocabulary()]
                .map(|size| size as u64);
        let mut largest = 0;
        let mut adapters = 0;
        for target in &lora.targets {
            let [outputs, inputs] = target.sizes(shape);
            adapters += layers * rank * (outputs + inputs);
            largest = largest.max(rank * outputs.max(inputs));
        }
        let mut trained = adapters;
        for what in &lora.train {
            trained += match what {
                Besides::Norms => layers * shape.norms() + hidden,
                Besides::Embeddings | Besides::Head => vocabulary * hidden,
            };
            if *what != Besides::Norms {
                largest = largest.max(vocabulary * hidden);
            }
        }
        let last = if shape.tie_word_embeddings { Besides::Embeddings } else { Besides::Head };
        Counts { all: all + adapters, trained, largest, head: lora.trains(last) }
    }

    /// Bytes of all gradients, f32.
    pub fn gradient_bytes(&self) -> u64 {
        F32 * self.counts().trained
    }

    /// What the sum of gradients hands over, where there is more than one rank.
    pub(crate) fn gradient_sum(&self) -> u64 {
        F32 * self.counts().trained + LOSS_AND_TARGETS
    }
}
