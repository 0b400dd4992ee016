//! The cost model: what a step takes on a described cluster, by walking a schedule over its devices and links, and which strategy to
//! choose.
//!
//! The one idea: a strategy is a list of hops, so its time is a walk over that list. Nothing here knows a strategy by name.

mod answer;
mod choose;
mod compare;
mod described;
mod estimate;
mod families;
mod fastest;
mod grid;
mod json;
mod keys;
mod load;
mod longest;
mod meshes;
mod offload;
mod overlap;
mod pace;
mod plans;
mod ports;
mod read;
mod routes;
mod scale;
mod shares;
mod show;
mod svg;
mod table;
mod tensor;
mod timeline;
mod waits;
mod walk;
mod weigh;
mod work;

pub use choose::{Choice, Shared};
pub use compare::{Comparison, Method};
pub use described::{Cluster, Level, Link, Rates};
pub use estimate::Estimate;
pub use grid::{Cell, Grid};
pub use load::{Load, Message, Step};
pub use longest::{Longest, longest};
pub use meshes::Meshes;
pub use offload::Offloaded;
pub use overlap::{Hiding, Overlap, minimal_block};
pub use pace::Pace;
pub use plans::{plan, plans, plans_measured};
pub use routes::RouteCost;
pub use scale::{Row, Scale};
pub use table::{Candidate, Table};
pub use timeline::timeline;
pub use walk::{Walk, walk};
pub use weigh::Weighing;
