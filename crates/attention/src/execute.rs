//! Runs any schedule over a communicator and a block kernel.

use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_ops::attention::{Attended, AttentionKernel};
use annulus_sequence::{Mask, Positions, Return, Schedule, Strategy, StrategyError};
use candle_core::{Result, Tensor};

/// Queries [B, Hq, S, D], keys and values [B, Hkv, S, D] of the positions on this rank.
#[derive(Clone, Debug)]
pub struct Qkv {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
}

/// Where in the program an attention is: printed in errors and traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The optimizer step.
    pub step: u64,
    /// The layer.
    pub layer: usize,
}

/// What an attention is to be.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How the sequence is split.
    pub strategy: Strategy,
    /// Which key a query sees.
    pub mask: Mask,
    /// Positions of the whole sequence.
    pub tokens: usize,
    /// Key/value heads.
    pub key_value_heads: usize,
    /// How gradients of keys and values come home.
    pub gradients: Return,
    /// Scores are multiplied by this; `1 / sqrt(head_dim)` as a rule.
    pub scale: f64,
}

/// Why an attention cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AttentionError {
    /// The strategy cannot deal or split so.
    #[error("{0:?}")]
    Strategy(StrategyError),
}

/// Exact attention over a split sequence, on one rank of those that share it.
#[derive(Debug)]
pub struct Attention {
    _forward: Schedule,
    _backward: Schedule,
    _comm: Arc<dyn Communicator>,
    _kernel: Arc<dyn AttentionKernel>,
}

impl Attention {
    /// Generates and proves the schedules of `setting` over the ranks of `comm`.
    pub fn new(
        _setting: &Setting,
        _comm: Arc<dyn Communicator>,
        _kernel: Arc<dyn AttentionKernel>,
    ) -> std::result::Result<Attention, AttentionError> {
        todo!()
    }
    /// The positions on this rank.
    pub fn positions(&self) -> &Positions {
        todo!()
    }
    /// Output [B, Hq, S, D] in the queries' dtype and log-sum-exp f32 [B, Hq, S] of this rank's queries. Off the tape.
    pub fn forward(&self, _place: Place, _qkv: &Qkv) -> Result<Attended> {
        todo!()
    }
    /// Gradients of this rank's queries, keys and values, in their dtypes. Off the tape.
    pub fn backward(
        &self,
        _place: Place,
        _qkv: &Qkv,
        _attended: &Attended,
        _gradient: &Tensor,
    ) -> Result<Qkv> {
        todo!()
    }
}
