//! NCCL, loaded at run time: it is not needed to build, and a machine without it is no error.
//!
//! Only sends and receives are used; sums are made by our own code, in a fixed order. [`find`] looks for the library, a [`Clique`] is a
//! communicator as one process has it, and a [`Lane`] is the stream on which its transfers run, after what computes a tensor and before
//! what reads it. Nothing here blocks: communicators are non-blocking, so that a transfer that hangs can be aborted. The unique id of a
//! clique, [`Id`], is sent to its processes by MPI.

mod clique;
#[cfg(feature = "emulator")]
pub mod emulated;
mod find;
#[cfg(feature = "cuda")]
mod gpu;
mod lane;
mod library;

pub use clique::{Clique, Id, Transfers};
pub use find::{Found, NAMED, find};
pub use lane::{Gate, Lane, Mark, Piece, lane};
pub use library::Library;

/// A call of NCCL, or a search for it, that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Error {
    /// What was called or looked for.
    pub what: String,
    /// Why it failed.
    pub why: String,
}

impl Error {
    fn new(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error { what: what.into(), why: why.into() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
