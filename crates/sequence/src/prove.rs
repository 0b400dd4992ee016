//! Checks a schedule before anything runs.

use crate::Schedule;

/// What was proved of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The most [`crate::Part::KeyValue`] buffers that are alive at once, by rank.
    pub key_values: Vec<usize>,
    /// The most gradient buffers (travelling and contributions) that are alive at once, by rank.
    pub gradients: Vec<usize>,
    /// Hops in which something moves.
    pub hops: usize,
}

/// What is wrong with a schedule; every variant names the rank, the hop and the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// Placeholder until the module is written.
    Unproved,
}

/// No deadlock, every needed tile exactly once, every gradient home with every contribution, every buffer freed.
pub fn prove(_schedule: &Schedule) -> Result<Proof, Flaw> {
    todo!()
}
