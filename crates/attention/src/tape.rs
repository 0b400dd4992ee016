//! Puts a schedule on Candle's tape.

use std::sync::{Arc, Mutex};

use annulus_ops::attention::Attended;
use candle_core::{Result, Tensor};

use crate::{Attention, Place, Qkv};

/// What attention leaves for a recomputed layer: its output and log-sum-exp, so that neither the ring nor the attention's
/// forward runs twice. Empty: the next call fills it. Filled: the next call takes it instead of computing.
#[derive(Clone, Debug, Default)]
pub struct Kept(#[expect(dead_code, reason = "skeleton")] Arc<Mutex<Option<Attended>>>);

impl Attention {
    /// Attention that a later `backward()` runs through: [B, Hq, S, D].
    pub fn attend(
        self: &Arc<Self>,
        _place: Place,
        _qkv: &Qkv,
        _kept: Option<&Kept>,
    ) -> Result<Tensor> {
        todo!()
    }
}
