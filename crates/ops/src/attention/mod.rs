//! The interface of attention kernels, which compute tiles: queries of one shard by keys of another.
//!
//! A kernel knows of a mask only what a [`Visibility`] says. Its running state (unnormalized output, running maximum, running sum) is f32,
//! private, and carried across tiles and hops, so that hop boundaries are invisible and nothing is merged.

mod dense;
mod dropout;
pub(crate) mod fused;
mod reference;
pub(crate) mod sizes;

use std::any::Any;
use std::fmt::Debug;

use annulus_sequence::{Positions, Visibility};
use candle_core::{Result, Tensor};

pub use dense::{Dense, dense};
pub use dropout::{Dropout, Dropped};
pub use fused::{Fused, Instructions};
pub use reference::Reference;
pub(crate) use sizes::wrong;

use crate::Backend;

/// A tile in forward: keys and values of one shard for the queries of the state.
///
/// Shapes: queries [B, Hq, Sq, D], keys and values [B, Hkv, Sk, D], contiguous, in a float dtype that the kernel takes; the queries' is the
/// one that is computed in. Query head `h` uses KV head `h / (Hq / Hkv)`.
#[derive(Clone, Debug)]
pub struct Tile<'a> {
    /// Keys [B, Hkv, Sk, D].
    pub k: &'a Tensor,
    /// Values [B, Hkv, Sk, D].
    pub v: &'a Tensor,
    /// The visibility: one for all batch rows, or one per batch row.
    pub visibility: &'a [Visibility],
    /// The dropout of weights; `None`: no weight is dropped.
    pub dropped: Option<Dropped<'a>>,
    /// The positions of queries and of keys in the sequence, which order-free sums need.
    pub positions: Option<[&'a Positions; 2]>,
}

impl<'a> Tile<'a> {
    /// A tile without dropout.
    pub fn new(k: &'a Tensor, v: &'a Tensor, visibility: &'a [Visibility]) -> Tile<'a> {
        Tile { k, v, visibility, dropped: None, positions: None }
    }
}

/// A tile in backward: keys and values with the gradients that they have so far.
#[derive(Debug)]
pub struct BackwardTile<'a> {
    /// The keys, values and visibility.
    pub tile: Tile<'a>,
    /// The gradients that this tile adds to; `None`: zeros.
    pub carried: Option<KeyValueGradients>,
}

/// Gradients of keys and values, f32 [B, Hkv, Sk, D], row-major, in the form in which they are sent.
#[derive(Clone, Debug)]
pub struct KeyValueGradients {
    /// The gradient of keys.
    pub dk: Tensor,
    /// The gradient of values.
    pub dv: Tensor,
}

/// The results of forward, which backward needs besides q, k, v.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The output, [B, Hq, Sq, D] in the queries' dtype; 0 in rows that see nothing.
    pub out: Tensor,
    /// Natural log of the sum of exponentials of scaled scores, f32 [B, Hq, Sq]; -inf in rows that see nothing.
    pub lse: Tensor,
}

/// What backward needs for a block of queries besides q, k, v: sent with queries whose keys stay.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The gradient of the output, [B, Hq, Sq, D] in the queries' dtype.
    pub gradient: Tensor,
    /// The log-sum-exp, f32 [B, Hq, Sq], in units of the kernel that made it.
    pub lse: Tensor,
    /// The sum over a row of output times its gradient, f32 [B, Hq, Sq].
    pub delta: Tensor,
}

/// A kernel's running state, opaque to others: only the kernel knows its type.
pub trait State: Send + Any + Debug {
    /// Announces that the next call has the last tiles: a kernel may then leave the result instead of a state.
    fn end_with_next(&mut self) {}
}

/// A kernel that computes tiles. Its result for a tile depends on that tile alone: not on threads, neighbours, or how many tiles are in the
/// call. `progress` is called now and then on the calling thread; its error ends the call.
pub trait AttentionKernel: Send + Sync + Debug {
    /// Starts a forward pass of `q` [B, Hq, Sq, D]; scores are multiplied by `scale` > 0.
    ///
    /// # Errors
    /// Tensors of a shape or dtype that the kernel does not take.
    fn begin(&self, q: &Tensor, scale: f64) -> Result<Box<dyn State>>;
    /// Folds tiles into the state, in order.
    ///
    /// # Errors
    /// Tiles that do not fit the state, and what `progress` returns.
    fn forward(
        &self,
        tiles: &[Tile<'_>],
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<()>;
    /// Divides by the sums and casts, once.
    ///
    /// # Errors
    /// What Candle, or the kernel's device, says.
    fn finish(&self, state: Box<dyn State>) -> Result<Attended>;
    /// Prepares the results of forward for backward; `gradient` is that of the output.
    ///
    /// # Errors
    /// Tensors that do not fit each other.
    fn prepare(&self, attended: &Attended, gradient: &Tensor) -> Result<Prepared>;
    /// Starts a backward pass with heads and rows of what was prepared.
    ///
    /// # Errors
    /// Tensors that do not fit each other.
    fn begin_prepared(&self, q: &Tensor, prepared: &Prepared, scale: f64)
    -> Result<Box<dyn State>>;
    /// Starts a backward pass: `gradient` is that of the output.
    ///
    /// # Errors
    /// Tensors that do not fit each other.
    fn begin_backward(
        &self,
        q: &Tensor,
        attended: &Attended,
        gradient: &Tensor,
        scale: f64,
    ) -> Result<Box<dyn State>> {
        self.begin_prepared(q, &self.prepare(attended, gradient)?, scale)
    }
    /// Adds the tiles to the gradient of queries; returns each tile's gradients of keys and values, added to those that it carried.
    ///
    /// # Errors
    /// Tiles that do not fit the state, and what `progress` returns.
    fn backward(
        &self,
        tiles: Vec<BackwardTile<'_>>,
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<Vec<KeyValueGradients>>;
    /// The gradient of the queries, f32 [B, Hq, Sq, D], or a table of order-free sums of that shape.
    ///
    /// # Errors
    /// What Candle, or the kernel's device, says.
    fn finish_backward(&self, state: Box<dyn State>) -> Result<Tensor>;
    /// The backend of the kernel, also for what others compute; by default the calling thread alone.
    fn backend(&self) -> Backend {
        Backend::serial()
    }
    /// Whether the kernel computes `softmax(scale q kᵀ) v` and nothing else: scores that are kept until values arrive
    /// ([`annulus_sequence::Strategy::LiRing`]) are computed without it. Other kernels cannot be used then, and that is the default.
    fn is_plain_softmax(&self) -> bool {
        false
    }
    /// The size of the strict blocks over which sums are order-free: gradients of queries, keys and values are then tables of such sums.
    /// `None`: they are f32.
    fn block(&self) -> Option<usize> {
        self.backend().block()
    }
}

/// A callback that is called now and then while tiles are computed.
pub type Progress<'a> = &'a dyn Fn() -> Result<()>;

/// The state as the kernel's own type.
pub(crate) fn own<S: State>(state: &mut dyn State) -> Result<&mut S> {
    match (state as &mut dyn Any).downcast_mut() {
        Some(state) => Ok(state),
        None => sizes::wrong(FOREIGN),
    }
}

/// The state as the kernel's own type, moved out of its box.
pub(crate) fn taken<S: State>(state: Box<dyn State>) -> Result<S> {
    match (state as Box<dyn Any>).downcast() {
        Ok(state) => Ok(*state),
        Err(_) => sizes::wrong(FOREIGN),
    }
}

const FOREIGN: &str = "a state of another kernel or of the other pass";
