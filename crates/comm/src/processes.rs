//! Ranks of several processes, each of which runs some of them as threads: MPI carries messages between the processes.
//!
//! Inside a process nothing is copied, as among [`threads`](crate::threads). Between processes one
//! thread of each (`mpi_thread.rs`) owns MPI: it sends what ranks here post, delivers what arrives,
//! and tells the other processes how far the ranks here are, so that deadlines, mismatched calls and failures
//! mean the same as among threads. Where every process has one rank and a GPU of its own, tensors go by NCCL (`nccl_transfers.rs`).

mod ending;
mod envelope;
mod facts;
mod inbox;
mod mpi_process;
mod mpi_thread;
mod nccl_setup;
mod nccl_thread;
mod nccl_transfers;
mod outbox;
mod remote_transport;

pub use facts::Facts;
pub(crate) use mpi_process::MpiProcess;
pub use mpi_process::{BEGINS_WITHIN, Unjoined};
