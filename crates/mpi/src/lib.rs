//! MPI, loaded at run time: it is not needed to build, and a machine without it is no error.
//!
//! One program runs under every MPI, whichever launcher started it: MPICH and libraries with its ABI
//! (Intel MPI, Cray MPICH, MVAPICH), Open MPI, and the standard ABI of MPI 5.0. They differ in a few
//! constants ([`Family`]). [`launched`] says which launcher started this process, [`find`] looks for the library, and a [`Session`] is
//! MPI as the one thread that calls it has it. All unsafe code for sending through MPI is here.

mod buffer;
mod find;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod launcher;
mod library;
#[cfg(any(feature = "cuda", test))]
mod pool;
mod requests;
mod session;
pub mod signals;
mod urgent;

pub use buffer::{Arriving, Elements, Leaving};
pub use find::{Found, NAMED, find};
pub use gpu::Outgoing;
pub use launcher::{Launched, launched, number};
pub use library::Family;
pub use session::{Receiving, Sending, Session, give_up_beginning};
pub use urgent::wake_soon;

/// A call of MPI, or a search for it, that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Error {
    /// What was called or looked for.
    pub what: String,
    /// Why it failed.
    pub why: String,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
