//! What is written into a checkpoint.

use candle_core::Tensor;

use crate::Result;

/// The share of a checkpoint that a rank writes, a tensor at a time.
pub(crate) trait Contents {
    /// The pieces of a weight that this rank writes.
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>>;
    /// The pieces that this rank writes of an optimizer's tensor, by its name in the checkpoint.
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Piece>>;
}

/// Some elements of a tensor, flat, and their places.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) elements: Tensor,
    /// The places of the elements in the whole tensor: runs of neighbours, each as (first, count).
    pub(crate) runs: Vec<(usize, usize)>,
}
