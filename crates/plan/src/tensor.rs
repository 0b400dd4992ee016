//! Tensor-parallel ranks: the part of a model that each has, and what they send each other.
//!
//! With n rows of a micro-batch at the positions that N ranks share, h = `hidden_size` and e bytes of an element. A collective counts what
//! a rank puts in: for a gather its own n / N rows, for a scatter its part of the sum for all n.
//!
//! ```text
//! forward    of each half of a layer: its input gathered, its output scattered
//! backward   of each half: gradient of its output and its input gathered, gradient of its input scattered; attention's input once more
//!            where layers are recomputed
//! ends       the embedding scattered, its gradient gathered; the loss's input gathered, its gradient scattered; three f32 of a token
//! ```

use annulus_architecture::{FullyTrained, Shape};
use annulus_experiment::{Experiment, Recompute};
use annulus_machine::blocks::SOFTMAX_STATISTICS;
use annulus_sequence::Positions;
use annulus_yaml::{Problem, Problems};

use crate::Plan;
use crate::cost::F32;

/// The shape of the part of a model that each tensor-parallel rank has.
///
/// # Errors
/// A model that the ranks cannot share evenly.
pub(crate) fn part(experiment: &Experiment, shape: &Shape) -> Result<Shape, Problem> {
    let ranks = experiment.mesh.tensor;
    let sizes = [
        ("KV heads", shape.num_key_value_heads),
        ("heads", shape.num_attention_heads),
        ("elements of `intermediate_size`", shape.intermediate_size),
    ];
    match sizes.into_iter().find(|(_, size)| !size.is_multiple_of(ranks)) {
        None if shape.vocab_size.is_some_and(|classes| classes < ranks) => {
            let message =
                format!("{ranks} tensor-parallel ranks cannot share so small a vocabulary");
            Err(experiment.places.problem("mesh.tensor", message).hint("lower it"))
        }
        None => Ok(shape.part_of(ranks)),
        Some((what, size)) => {
            let message =
                format!("{size} {what} cannot be shared by {ranks} tensor-parallel ranks");
            let hint = "`mesh.tensor` is a divisor of the KV heads and of `intermediate_size`";
            Err(experiment.places.problem("mesh.tensor", message).hint(hint))
        }
    }
}

/// Refuses shards of positions whose rows the tensor-parallel ranks cannot share evenly.
pub(crate) fn share_rows(experiment: &Experiment, shards: &[Positions]) -> Result<(), Problems> {
    let ranks = experiment.mesh.tensor;
    let uneven = shards.iter().find(|shard| !shard.tokens().is_multiple_of(ranks));
    let Some(shard) = uneven else { return Ok(()) };
    let message = format!(
        "{ranks} tensor-parallel ranks cannot share a shard of {} tokens evenly",
        shard.tokens()
    );
    let hint = "set `data.tokens` to a multiple of `mesh.sequence` times `mesh.tensor`; what `mesh.weights` or a layout shards \
                unevenly must come out even for each rank";
    Err(experiment.places.problem("mesh.tensor", message).hint(hint).into())
}

impl Plan {
    /// Tokens of the vocabulary for which a rank has logits, at most.
    pub(crate) fn own_vocabulary(&self) -> u64 {
        self.own.vocab_size.unwrap_or_default() as u64
    }

    /// Tokens of the vocabulary that tensor-parallel part number `part` has, of which each has its share as ranks cut any dimension.
    pub(crate) fn vocabulary_of(&self, part: usize) -> u64 {
        let (all, parts) = (self.vocabulary(), self.experiment.mesh.tensor);
        (all * (part + 1) / parts - all * part / parts) as u64
    }

    /// How often per layer all rows are gathered or scattered between tensor-parallel ranks, forward and backward.
    pub fn tensor_collectives(&self) -> [u64; 2] {
        self.gathered_and_scattered().map(|[gathered, scattered]| gathered + scattered)
    }

    /// How often per layer all rows are gathered, and how often scattered: forward, then backward.
    fn gathered_and_scattered(&self) -> [[u64; 2]; 2] {
        let again = match self.memory.recompute {
            Recompute::None => 0,
            Recompute::Layer | Recompute::Auto => 1,
        };
        [[2, 2], [4 + again, 2]]
    }

    /// Bytes that a rank with `positions` sends to tensor-parallel ranks per step.
    pub(crate) fn tensor_bytes(&self, positions: usize) -> u64 {
        let [ahead, back, ends] = self.tensor_bytes_of(positions);
        let layers = self.shape.num_hidden_layers as u64;
        (layers * (ahead + back) + ends) * self.micro_batches as u64
    }

    /// Bytes that a rank with `positions` sends to tensor-parallel ranks per micro-batch: of a layer forward, of a layer backward, and of
    /// the embedding and the loss together.
    pub fn tensor_bytes_of(&self, positions: usize) -> [u64; 3] {
        let ranks = self.experiment.mesh.tensor as u64;
        if ranks == 1 {
            return [0; 3];
        }
        let trained = self.trains(FullyTrained::Embeddings);
        let rows = (positions * self.micro_batch) as u64;
        let element = self.experiment.model.dtype.bytes() as u64;
        let row = self.shape.hidden_size as u64 * element;
        let of =
            |[gathered, scattered]: [u64; 2]| row * (rows / ranks * gathered + rows * scattered);
        let [ahead, back] = self.gathered_and_scattered().map(of);
        [ahead, back, of([1 + u64::from(trained), 2]) + rows * SOFTMAX_STATISTICS as u64 * F32]
    }
}
