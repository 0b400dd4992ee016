//! Finished runs: what they logged, how they compare, and whether they can be computed again.

pub(crate) mod aligned;
pub(crate) mod bisect;
pub(crate) mod compare;
pub(crate) mod logged;
pub(crate) mod named;
pub(crate) mod replayed;
pub(crate) mod reproduced;
pub(crate) mod summary;
pub(crate) mod table;
pub(crate) mod traces;
