//! How tensors travel between ranks.
//!
//! One trait, [`Communicator`]. Ranks are [`threads`] of one process, with nothing to install and
//! nothing copied, or of several processes that MPI joins ([`World`]). An engine moves tensors by
//! [`exchange`](Communicator::exchange) alone: collectives are made from it, with sums in a fixed order, and [`ReduceScatter`] and
//! [`AllGather`] go on while ranks compute. What else it writes is the names of its ranks, groups split from it, and signs of life.
//! [`Metered`], [`Checked`], [`Hashed`] and [`Faulty`] wrap any engine. Every process keeps a [`flight`] record. Data is moved by existing
//! libraries: no transport protocol is ours.

mod checked;
mod collectives;
mod communicator;
mod error;
mod faulty;
pub mod flight;
mod hashed;
mod mesh;
mod metered;
mod payload;
mod posted;
mod processes;
mod rank_hosts;
mod sum;
pub mod threads;
mod world;
mod wrapper;

pub use annulus_mpi::{Error as MpiError, signals};
pub use annulus_nccl::Error as NcclError;
pub use checked::Checked;
pub use collectives::all_gather_values;
pub use communicator::{
    Communicator, Form, Label, P2pOp, Pending, Reduce, Transfer, WEIGHTS, Watching,
};
pub use error::{Blame, Cause, Error, Failure, Result};
pub use faulty::{Fault, Faulty, When};
pub use hashed::{Exchanged, Hashed};
pub use mesh::{Axis, Grid, Mesh};
pub use metered::{Flow, Metered, Traffic};
pub use payload::bytes_of;
pub use posted::{AllGather, ReduceScatter, empty};
pub use processes::{BEGINS_WITHIN, Facts, Unjoined};
pub use rank_hosts::{OnHost, RankHosts};
pub use sum::sum;
pub use world::{MpiProgress, World, Wrap};
pub use wrapper::Wrapper;
