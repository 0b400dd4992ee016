//! A run from its first step to its last: phases, metrics, checkpoints in a folder.

pub(crate) mod attempt;
pub(crate) mod course;
pub(crate) mod curves;
pub(crate) mod folder;
pub(crate) mod identity;
pub(crate) mod lines;
pub(crate) mod manifest;
pub(crate) mod metrics;
pub(crate) mod phases;
pub(crate) mod sink;
pub(crate) mod traces;
