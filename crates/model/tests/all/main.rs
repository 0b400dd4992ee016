//! Models on one rank, and their files.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod attentions;
mod hostile;
mod llama;
mod weights;
