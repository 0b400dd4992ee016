//! The last projection and the cross entropy in one, a chunk of tokens at a time: logits never exist for all tokens.

use candle_core::{Result, Tensor};

use crate::Pool;

/// A target that is left out.
pub const IGNORED: i64 = -100;

/// The sum over tokens of `-log softmax(x wᵀ)[target]`, natural log: a scalar f32.
///
/// `x` [.., D], `weight` [V, D], `targets` i64 [..] with [`IGNORED`] left out, `chunk` tokens of logits held at once. Where `x` or
/// `weight` is on the tape, gradients are made chunk by chunk in the forward pass and kept until backward.
pub fn linear_cross_entropy(
    _pool: &Pool,
    _x: &Tensor,
    _weight: &Tensor,
    _targets: &Tensor,
    _chunk: usize,
) -> Result<Tensor> {
    todo!()
}
