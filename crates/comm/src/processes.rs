//! Ranks of several processes, each of them some threads of one: MPI carries what goes between.
//!
//! Inside a process nothing is copied, as among [`threads`](crate::threads). Between processes one
//! thread of each, the office, owns MPI: it sends what ranks here post, hands on what arrives,
//! and tells the others how far the ranks here are, so that deadlines, mismatched calls and failures
//! mean the same as among threads.

mod clerk;
mod envelope;
mod inbox;
mod office;
mod outbox;

pub(crate) use office::Office;
pub use office::{BEGINS_WITHIN, Facts, Unjoined};
