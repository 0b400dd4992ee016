//! The ranks as a grid: `data` replicas, each of `sequence` ranks that share a sequence.

use std::sync::Arc;

use crate::{Communicator, Error, Label, Result, threads};

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
    alone: Arc<dyn Communicator>,
}

impl Mesh {
    /// Splits `world` into `data` × `sequence`, which must be as many ranks as it has.
    ///
    /// # Errors
    /// When `data * sequence` is another number, and as [`Communicator::split`].
    pub fn new(world: Arc<dyn Communicator>, data: usize, sequence: usize) -> Result<Mesh> {
        let rank = world.rank();
        let label = |hop| Label { pass: "mesh", hop, ..Label::default() };
        if data * sequence != world.world() {
            return Err(Error::Call {
                rank,
                label: label(0),
                found: format!("a mesh of {data} × {sequence}").into(),
                wanted: format!("one of {} ranks", world.world()).into(),
            });
        }
        let (replica, place) = (rank / sequence, rank % sequence);
        Ok(Mesh {
            data: world.split(label(0), place, replica)?,
            sequence: world.split(label(1), replica, place)?,
            alone: world.split(label(2), rank, 0)?,
            world,
        })
    }

    /// The grid of one rank, without threads.
    pub fn solo() -> Mesh {
        let world: Arc<dyn Communicator> = threads::solo();
        let [data, sequence, alone] = [&world, &world, &world].map(Arc::clone);
        Mesh { data, sequence, world, alone }
    }

    /// The ranks along the named axes; `group(&[Axis::Data, Axis::Sequence])` is all of them,
    /// `group(&[])` this one.
    pub fn group(&self, axes: &[Axis]) -> &Arc<dyn Communicator> {
        match (axes.contains(&Axis::Data), axes.contains(&Axis::Sequence)) {
            (true, true) => &self.world,
            (true, false) => &self.data,
            (false, true) => &self.sequence,
            (false, false) => &self.alone,
        }
    }
}
