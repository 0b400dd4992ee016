//! The ranks as a grid: `data` replicas, each of `sequence` ranks that share a sequence.

use std::sync::Arc;

use crate::{Communicator, Result};

/// A direction of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Replicas that see different sequences.
    Data,
    /// Ranks that share a sequence.
    Sequence,
}

/// The grid. Rank `r` of the world is replica `r / sequence`, sequence rank `r % sequence`.
#[derive(Clone, Debug)]
pub struct Mesh {
    data: Arc<dyn Communicator>,
    sequence: Arc<dyn Communicator>,
    world: Arc<dyn Communicator>,
}

impl Mesh {
    /// Splits `world` into `data` × `sequence`.
    pub fn new(_world: Arc<dyn Communicator>, _data: usize, _sequence: usize) -> Result<Mesh> {
        todo!()
    }
    /// The ranks along the named axes; `group(&[Axis::Data, Axis::Sequence])` is all of them.
    pub fn group(&self, axes: &[Axis]) -> &Arc<dyn Communicator> {
        match (axes.contains(&Axis::Data), axes.contains(&Axis::Sequence)) {
            (true, true) => &self.world,
            (true, false) => &self.data,
            _ => &self.sequence,
        }
    }
}
