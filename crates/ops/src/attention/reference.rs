//! Slow and obvious: dense attention in f64 from positions, and a kernel of plain loops.

use annulus_sequence::{Mask, Positions};
use candle_core::{Result, Tensor};

/// What dense attention gives, all f64.
#[derive(Clone, Debug)]
pub struct Dense {
    /// [B, Hq, Sq, D].
    pub out: Tensor,
    /// [B, Hq, Sq].
    pub lse: Tensor,
    /// [B, Hq, Sq, D].
    pub dq: Tensor,
    /// [B, Hkv, Sk, D].
    pub dk: Tensor,
    /// [B, Hkv, Sk, D].
    pub dv: Tensor,
}

/// A block of queries against a block of keys, in f64, by `mask.allows` on every pair of positions.
#[expect(clippy::too_many_arguments, reason = "the reference takes everything at once")]
pub fn dense(
    _q: &Tensor,
    _k: &Tensor,
    _v: &Tensor,
    _gradient: &Tensor,
    _mask: &Mask,
    _queries: &Positions,
    _keys: &Positions,
    _scale: f64,
) -> Result<Dense> {
    todo!()
}

/// The kernel of plain loops, in f64 inside.
#[derive(Debug, Default)]
pub struct Reference;
