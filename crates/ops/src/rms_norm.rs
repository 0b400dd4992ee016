//! `x / sqrt(mean(x²) + epsilon) * weight` over the last dimension (Zhang and Sennrich, arXiv 1910.07467).

use candle_core::{Result, Tensor};

use crate::Pool;

/// `x` [.., D], `weight` [D]: [.., D], with gradients for both.
pub fn rms_norm(_pool: &Pool, _x: &Tensor, _weight: &Tensor, _epsilon: f64) -> Result<Tensor> {
    todo!()
}
