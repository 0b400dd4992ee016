//! What an experiment means on its ranks: layer groups with proved schedules, memory, bytes.
//!
//! A [`Plan`] is made of an experiment that leaves no strategy open, and reads no file. Its schedules
//! are the ones that run.

mod cost;
mod groups;
mod machine;
mod misfit;
mod plan;
mod processes;
mod proving;
mod rank;
mod report;
mod route;
mod schedules;
mod settings;
mod sharding;
mod strict;
mod support;
mod tensor;
mod warnings;
mod wire;
mod words;

pub use annulus_architecture::slice_range;
pub use cost::{OFFLOADS_IN_FLIGHT, SUMS_IN_FLIGHT};
pub use groups::LayerGroup;
pub use machine::Process;
pub use misfit::{MemoryNeed, Misfit};
pub use plan::{Chosen, Plan};
pub use processes::devices_for;
pub use proving::{Proved, Proving};
pub use rank::RankPlan;
pub use route::RouteChoice;
pub use schedules::heads_of;
pub use sharding::{Group, StateSharding};
pub use support::support;
pub use warnings::{PACKED_TOGETHER, mask_beyond_config};
pub use words::label;
