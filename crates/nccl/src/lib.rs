//! NCCL, found when the program starts: nothing of it is needed to build, and a machine without it is no error.
//!
//! Only sends and receives are used: sums stay ours, in an order of ours. [`find`] looks for the library, a [`Clique`] is one
//! process's end of it, and a [`Lane`] is the stream that its transfers are on: behind what computes a tensor, before what reads it.
//! Nothing here blocks: communicators are non-blocking, so that a transfer that hangs can be given up. The name of
//! a clique, [`Id`], is handed to its processes by whatever joins them: MPI.

mod clique;
#[cfg(feature = "emulator")]
pub mod emulated;
mod find;
#[cfg(feature = "cuda")]
mod gpu;
mod lane;
mod library;

pub use clique::{Clique, Id, Shipment};
pub use find::{Found, NAMED, find};
pub use lane::{Gate, Lane, Mark, Piece, lane};
pub use library::Library;

/// What NCCL, or the search for it, answered.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Error {
    /// What was asked for.
    pub what: String,
    /// The answer.
    pub why: String,
}

impl Error {
    fn new(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error { what: what.into(), why: why.into() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
