//! What steps cost: time, bytes and memory of every rank, signs of life, and traces.

pub(crate) mod alive;
pub(crate) mod clocks;
pub(crate) mod hosts;
pub(crate) mod memory;
pub(crate) mod resident;
pub(crate) mod spans;
pub(crate) mod statistics;
