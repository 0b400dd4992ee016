//! Traces: a schedule laid over time, measured or planned.
//!
//! The one idea: a trace is a list of spans per rank, each of which says what was done in the words of the schedule: hop, blocks, tiles,
//! bytes. Threads record spans while they work ([`start`]), the cost model computes them, and every reader takes either: the file for
//! Perfetto, the sums, the list of moves, the drawing.

mod chrome;
mod draw;
mod flows;
mod links;
mod moves;
mod read;
mod record;
mod span;
mod sums;
pub mod testing;
mod words;

pub use flows::Flow;
pub use links::{Link, links};
pub use moves::Hop;
pub use read::{MOST_RANKS, Unreadable};
pub use record::{Begun, begin, now, start, stop};
pub use span::{Activity, Moved, Pass, Place, RankLocation, Span, Tile, Trace, TracedBlock, Track};
pub use sums::{AttentionTimes, Exposed, Sums};
