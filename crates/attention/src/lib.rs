//! Exact attention over a sequence split across ranks: executes a schedule, and puts it on Candle's tape.
//!
//! Knows ranks and schedules; does not know models, files or YAML.

mod buffers;
mod cache;
mod execute;
mod pass;
mod rows;
mod scores;
mod tape;
mod tile_views;
mod traced;
mod travel;

pub use cache::Cache;
pub use execute::{Attention, CallSite, Qkv};
pub use rows::rows_at;
