//! What a schedule costs: bytes and visible pairs, from the list alone.

use crate::{Mask, Positions, Schedule};

/// What a row of a buffer weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Sequences in the batch.
    pub batch: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Bytes per element of keys and values on the wire.
    pub wire: usize,
    /// Bytes per element of gradients on the wire.
    pub gradient_wire: usize,
}

/// Payload handed to the communicator, by rank. A collective counts its input once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u64>);

impl Bytes {
    /// The bytes that one run of `schedule` hands over, by rank.
    pub fn of(_schedule: &Schedule, _shape: BlockShape) -> Bytes {
        todo!()
    }
}

/// How many (query, key) pairs are visible between two shards.
pub fn pairs_between(_mask: &Mask, _q: &Positions, _k: &Positions) -> u64 {
    todo!()
}

/// Visible pairs per hop (outer) and rank (inner) of a schedule.
pub fn pairs_per_hop(_schedule: &Schedule) -> Vec<Vec<u64>> {
    todo!()
}
