//! What goes wrong between ranks.

use std::time::Duration;

use crate::Label;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of a communicator failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer made no progress for longer than the deadline.
    #[error(
        "rank {rank} waited {waited:.1?} for rank {peer} ({label}): no progress there within the deadline"
    )]
    Deadline {
        /// Who waited.
        rank: usize,
        /// For whom.
        peer: usize,
        /// Where in the program.
        label: Label,
        /// How long.
        waited: Duration,
    },
    /// Two ranks are not at the same call.
    #[error(
        "rank {rank} is at {label} but rank {peer} sent for {theirs}: ranks made different calls"
    )]
    Order {
        /// Who noticed.
        rank: usize,
        /// Who sent.
        peer: usize,
        /// Where the one who noticed is.
        label: Label,
        /// Where the sender was.
        theirs: Label,
    },
    /// Another rank failed first; the group has ended.
    #[error("ended because rank {rank} failed")]
    Ended {
        /// Who failed first.
        rank: usize,
    },
    /// The run is to stop (a signal).
    #[error("stopped on request")]
    Stopped,
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> candle_core::Error {
        candle_core::Error::wrap(error)
    }
}

/// Why a group of ranks ended: the first cause.
#[derive(Debug)]
pub struct Failure<E> {
    /// Who failed first.
    pub rank: usize,
    /// What happened there.
    pub cause: Cause<E>,
}

/// What happened on the rank that failed first.
#[derive(Debug)]
pub enum Cause<E> {
    /// It panicked, with this message.
    Panic(String),
    /// Its program returned an error.
    Error(E),
}
