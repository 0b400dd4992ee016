//! A run from its first step to its last: phases, metrics, checkpoints in a folder.

pub(crate) mod agree;
pub(crate) mod aligned;
pub(crate) mod attempt;
pub(crate) mod came_to;
pub(crate) mod clocks;
pub(crate) mod compare;
pub(crate) mod course;
pub(crate) mod curves;
pub(crate) mod folder;
pub(crate) mod fork;
pub(crate) mod given;
pub(crate) mod hashes;
pub(crate) mod identity;
pub(crate) mod lines;
pub(crate) mod logged;
pub(crate) mod manifest;
pub(crate) mod metrics;
pub(crate) mod outcome;
pub(crate) mod phases;
pub(crate) mod ranks;
pub(crate) mod saving;
pub(crate) mod shares;
pub(crate) mod sink;
pub(crate) mod table;
pub(crate) mod together;
pub(crate) mod traces;
mod writing;
