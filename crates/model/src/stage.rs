//! A model as a list of stages.

use std::sync::Arc;

use annulus_attention::{Attention, Kept};
use annulus_ops::{Pool, Rotary};
use candle_core::{Result, Tensor};

use crate::Weights;

/// What one rank holds of a micro-batch, and what a stage may use. B sequences, S positions on this
/// rank.
#[derive(Clone, Debug)]
pub struct Shard {
    /// u32 [B, S].
    pub inputs: Tensor,
    /// i64 [B, S]; [`annulus_ops::IGNORED`] where there is none. Shifted before dealing.
    pub targets: Tensor,
    /// Attention over the ranks that share the sequence.
    pub attention: Arc<Attention>,
    /// Cosines and sines at this rank's positions.
    pub rotary: Arc<Rotary>,
    /// This rank's workers.
    pub pool: Pool,
    /// The optimizer step, for errors.
    pub step: u64,
    /// Where attention keeps what a recomputation needs; `None`: nothing is recomputed.
    pub kept: Option<Kept>,
}

/// A part of the model that is run forward, and recomputed and differentiated, as one.
pub trait Stage: Send + Sync + std::fmt::Debug {
    /// The names of its parameters, as in a Hugging Face file.
    fn parameters(&self) -> &[String];
    /// Whether every row of the input is computed by itself, so that the stage may be run on a few
    /// rows at a time: `x` is then [.., D] of any rows.
    fn rowwise(&self) -> bool {
        false
    }
    /// `x` [B, S, D] to [B, S, D]. The first stage ignores `x` and reads `shard.inputs`; the last
    /// returns the scalar f32 sum of losses over `shard.targets`.
    fn forward(&self, x: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor>;
}
