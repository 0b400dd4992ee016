//! Small things every training loop needs and Candle lacks.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor};

use crate::Pool;

/// Vector-Jacobian product: the gradients of `sum(y * seed)`; `seed` has the shape and dtype of `y` and is not differentiated.
pub fn vjp(_y: &Tensor, _seed: &Tensor) -> Result<GradStore> {
    todo!()
}

/// The sum of squares of all elements, in f64, in the order given and independent of the number of workers.
pub fn global_norm_squared<'a>(
    _pool: &Pool,
    _tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<f64> {
    todo!()
}

/// Multiplies in place; f32.
pub fn scale(_pool: &Pool, _tensor: &Tensor, _by: f64) -> Result<()> {
    todo!()
}
