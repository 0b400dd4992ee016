//! Rotary position embedding at the positions of runs (Su et al., arXiv 2104.09864), rotate-half layout.

use annulus_sequence::Positions;
use candle_core::{Result, Tensor};

use crate::Pool;

/// Cosines and sines at the positions of one shard: angles in f64, from the runs, so that no rank needs a table of the whole.
#[derive(Debug)]
pub struct Rotary {
    /// [S, D / 2], row-major.
    pub cos: Vec<f32>,
    /// [S, D / 2], row-major.
    pub sin: Vec<f32>,
    /// D.
    pub head_dim: usize,
}

impl Rotary {
    /// `frequencies` [D / 2] in radians per position; cos and sin are multiplied by `factor` (1 but for YaRN and LongRoPE).
    pub fn new(_positions: &Positions, _frequencies: &[f32], _factor: f64) -> Rotary {
        todo!()
    }
    /// `theta ^ (-2 i / D)`, as f32.
    pub fn frequencies(_head_dim: usize, _theta: f64) -> Vec<f32> {
        todo!()
    }
}

/// `x` [B, H, S, D], row `s` rotated by the `s`-th position of `rotary`; with gradient.
pub fn rope(_pool: &Pool, _x: &Tensor, _rotary: &std::sync::Arc<Rotary>) -> Result<Tensor> {
    todo!()
}
