//! Models on one rank, and their files.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod llama;
mod weights;
