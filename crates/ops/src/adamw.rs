//! AdamW with decoupled decay (Loshchilov and Hutter, arXiv 1711.05101), in place, on f32 masters.

use candle_core::{Result, Tensor};

use crate::Pool;

/// The settings of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first and second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay of this parameter (0 for vectors).
    pub weight_decay: f64,
    /// Steps taken, this one included.
    pub step: u64,
}

/// The state of one parameter, f32 in its shape. Updated in place.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Running mean of gradients.
    pub first: Tensor,
    /// Running mean of their squares.
    pub second: Tensor,
}

impl Moments {
    /// Zeros in the shape of `parameter`.
    pub fn zeros(_parameter: &Tensor) -> Result<Moments> {
        todo!()
    }
}

impl AdamW {
    /// One step of one parameter: `parameter` f32 and `moments` change in place. The gradient is multiplied by `clip` on the way.
    pub fn update(
        &self,
        _pool: &Pool,
        _parameter: &Tensor,
        _gradient: &Tensor,
        _clip: f64,
        _moments: &Moments,
    ) -> Result<()> {
        todo!()
    }
}
