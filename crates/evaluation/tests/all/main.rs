//! Evaluations of a tiny model with long sequences, on any number of ranks.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod conversations;
mod perplexity;
mod prompts;
mod tasks;
