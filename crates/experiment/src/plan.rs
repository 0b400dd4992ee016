//! What an experiment means: every cross-check made, every number derived, nothing optional.

use annulus_sequence::{Mask, Positions};

use crate::{Experiment, Problems, Shape};

/// An experiment that can run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// As written, with defaults.
    pub experiment: Experiment,
    /// The model's shape, with the vocabulary and `rope_theta` settled.
    pub shape: Shape,
    /// The mask.
    pub mask: Mask,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// Micro-batches per optimizer step and rank.
    pub micro_batches: usize,
    /// By rank of the world.
    pub ranks: Vec<RankPlan>,
}

/// What one rank will hold and hand over, per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan {
    /// Its place in the world.
    pub rank: usize,
    /// The positions it holds of each of its sequences.
    pub positions: Positions,
    /// Visible (query, key) pairs of its queries, per head and layer, over all its sequences.
    pub pairs: u64,
    /// Attention's forward bytes of all layers and micro-batches.
    pub forward: u64,
    /// Attention's backward bytes.
    pub backward: u64,
    /// Bytes of gradient sums, loss and norm included.
    pub gradients: u64,
    /// Peak memory by class, bytes.
    pub peak: Peak,
}

/// Peak memory of a rank by class, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Weights (and f32 masters where weights are bf16).
    pub weights: u64,
    /// f32 gradients.
    pub gradients: u64,
    /// Moments.
    pub optimizer: u64,
    /// Activations.
    pub activations: u64,
    /// Keys, values and their gradients in flight.
    pub key_value: u64,
}

impl Plan {
    /// Checks what spans sections. `vocabulary` is what the tokenizer has, where it is known.
    pub fn new(_experiment: Experiment, _vocabulary: Option<usize>) -> Result<Plan, Problems> {
        todo!()
    }
}
