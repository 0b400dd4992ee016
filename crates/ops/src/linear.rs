//! `y = x wᵀ (+ bias)`, through `gemm` tiles in the rank's pool.

use candle_core::{Result, Tensor};

use crate::Pool;

/// `x` [.., I] times `weight` [O, I] transposed, plus `bias` [O]: [.., O], with gradients for all three.
pub fn linear(
    _pool: &Pool,
    _x: &Tensor,
    _weight: &Tensor,
    _bias: Option<&Tensor>,
) -> Result<Tensor> {
    todo!()
}
