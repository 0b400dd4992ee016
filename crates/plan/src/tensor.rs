//! Tensor-parallel ranks: what each has of a model, and what they send each other.
//!
//! With n rows of a micro-batch at the positions that N of them share, h = `hidden_size` and e bytes of an element. A collective counts
//! what is handed to it: own rows, n / N, that are gathered, or parts of a sum for all n that are scattered.
//!
//! ```text
//! forward    of each half of a layer: its input gathered, its output scattered
//! backward   of each half: gradient of its output and its input gathered, gradient of its input scattered; attention's input once more
//!            where layers are recomputed
//! ends       the embedding scattered, its gradient gathered; the loss's input gathered, its gradient scattered; three f32 of a token
//! ```

use annulus_architecture::{Besides, Shape};
use annulus_experiment::{Experiment, Recompute};
use annulus_sequence::Positions;
use annulus_yaml::{Problem, Problems};

use crate::Plan;
use crate::cost::F32;

/// Numbers that ranks tell each other of a token's loss.
const TOLD: u64 = 3 * F32;

/// The part of a model that each rank has.
///
/// # Errors
/// A model that so many ranks cannot share evenly.
pub(crate) fn part(experiment: &Experiment, shape: &Shape) -> Result<Shape, Problem> {
    let ranks = experiment.mesh.tensor;
    let sizes = [
        ("key/value heads", shape.num_key_value_heads),
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
            let hint =
                "`mesh.tensor` is a divisor of the key/value heads and of `intermediate_size`";
            Err(experiment.places.problem("mesh.tensor", message).hint(hint))
        }
    }
}

/// Refuses shards whose rows they cannot share evenly.
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
    /// Of them, those of which a rank has logits, at most.
    pub(crate) fn own_vocabulary(&self) -> u64 {
        self.own.vocab_size.unwrap_or_default() as u64
    }

    /// How often all rows of a layer are gathered or scattered between tensor-parallel ranks, forward and backward.
    pub fn tensor_collectives(&self) -> [u64; 2] {
        self.gathered_and_scattered().map(|[gathered, scattered]| gathered + scattered)
    }

    /// The same apart, forward and backward.
    fn gathered_and_scattered(&self) -> [[u64; 2]; 2] {
        let again = match self.memory.recompute {
            Recompute::None => 0,
            Recompute::Layer | Recompute::Auto => 1,
        };
        [[2, 2], [4 + again, 2]]
    }

    /// What a rank with so many positions hands to tensor-parallel ranks in a step, bytes.
    pub(crate) fn tensor_bytes(&self, positions: usize) -> u64 {
        let [ahead, back, ends] = self.tensor_bytes_of(positions);
        let layers = self.shape.num_hidden_layers as u64;
        (layers * (ahead + back) + ends) * self.micro_batches as u64
    }

    /// The same of a micro-batch: of a layer forward and backward, and of the embedding and the loss.
    pub fn tensor_bytes_of(&self, positions: usize) -> [u64; 3] {
        let ranks = self.experiment.mesh.tensor as u64;
        if ranks == 1 {
            return [0; 3];
        }
        let trained =
            self.experiment.lora.as_ref().is_none_or(|lora| lora.trains(Besides::Embeddings));
        let rows = (positions * self.micro_batch) as u64;
        let element = self.experiment.model.dtype.bytes() as u64;
        let row = self.shape.hidden_size as u64 * element;
        let of =
            |[gathered, scattered]: [u64; 2]| row * (rows / ranks * gathered + rows * scattered);
        let [ahead, back] = self.gathered_and_scattered().map(of);
        [ahead, back, of([1 + u64::from(trained), 2]) + rows * TOLD]
    }
}
