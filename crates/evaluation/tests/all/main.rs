//! What a tiny model makes of long sequences, on any ranks.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod perplexity;
mod tasks;
