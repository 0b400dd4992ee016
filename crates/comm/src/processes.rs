//! Ranks of several processes, each of them some threads of one: MPI carries what goes between.
//!
//! Inside a process nothing is copied, as among [`threads`](crate::threads). Between processes one
//! thread of each, the office, owns MPI: it sends what ranks here post, hands on what arrives,
//! and tells the others how far the ranks here are, so that deadlines, mismatched calls and failures
//! mean the same as among threads. Where every process has one rank and a GPU of its own, tensors go by NCCL (`express.rs`).

mod carried;
mod clerk;
mod courier;
mod engine;
mod envelope;
mod express;
mod facts;
mod inbox;
mod office;
mod outbox;

pub use facts::Facts;
pub(crate) use office::Office;
pub use office::{BEGINS_WITHIN, Unjoined};
