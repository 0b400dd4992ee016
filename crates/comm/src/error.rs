//! Errors of communicators, and why groups of ranks end.

use std::error::Error as StdError;
use std::fmt::{self, Debug, Display};
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Form, Label};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of a communicator failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer made no progress for longer than the deadline.
    #[error(
        "rank {rank} waited {:.1} s for rank {peer} ({label}): no progress there within the \
         deadline",
        waited.as_secs_f64()
    )]
    Deadline {
        /// The rank that waited.
        rank: usize,
        /// The rank that it waited for.
        peer: usize,
        /// Where in the program it happened.
        label: Label,
        /// How long it waited.
        waited: Duration,
    },
    /// Two ranks are not at the same call.
    #[error(
        "rank {rank} is at {label} but rank {peer} sent for {theirs}: ranks made different calls"
    )]
    Order {
        /// The rank that noticed.
        rank: usize,
        /// The rank that sent.
        peer: usize,
        /// Where in the program the rank that noticed is.
        label: Label,
        /// Where in the program the sender was.
        theirs: Box<Label>,
    },
    /// A peer sent a tensor of another type or shape.
    #[error("rank {rank} received {found} from rank {peer} ({label}), expected {wanted}")]
    Form {
        /// The rank that noticed.
        rank: usize,
        /// The rank that sent.
        peer: usize,
        /// Where in the program it happened.
        label: Label,
        /// The form that came.
        found: Box<Form>,
        /// The form that was expected.
        wanted: Box<Form>,
    },
    /// A peer's program returned while this rank still waited for it.
    #[error(
        "rank {rank} waits for rank {peer} ({label}), which has finished: ranks made \
         different calls"
    )]
    Left {
        /// The rank that waits.
        rank: usize,
        /// The rank that it waited for.
        peer: usize,
        /// Where in the program it happened.
        label: Label,
    },
    /// What arrived is not what was sent.
    #[error("rank {rank} received damaged data from rank {peer} ({label}): wrong checksum")]
    Corrupt {
        /// The rank that noticed.
        rank: usize,
        /// The rank that sent.
        peer: usize,
        /// Where in the program it happened.
        label: Label,
    },
    /// A call that no group of this size can serve, such as a send to a rank that does not exist: a mistake of the program that the
    /// ranks run.
    #[error("rank {rank} ({label}): {found}, expected {wanted}")]
    Call {
        /// The rank that called.
        rank: usize,
        /// Where in the program it happened.
        label: Label,
        /// What was asked for.
        found: Box<str>,
        /// What can be asked for.
        wanted: Box<str>,
    },
    /// A launcher ends the job, and the process of a rank is silent.
    #[error("rank {rank} is gone: its process ended without a word")]
    Gone {
        /// A rank of that process.
        rank: usize,
    },
    /// No heartbeat of another process came for too long, outside of runs.
    #[error(
        "process {process} waited {:.1} s for process {peer}, of which nothing was heard",
        waited.as_secs_f64()
    )]
    Silent {
        /// The process that waited.
        process: usize,
        /// The process that it waited for.
        peer: usize,
        /// How long it waited.
        waited: Duration,
    },
    /// MPI or NCCL failed, so that nothing goes between processes any more.
    #[error("the engine between processes ended: {why}")]
    Engine {
        /// The library's own error.
        why: Box<str>,
    },
    /// Another rank failed first; the group has ended.
    #[error("ended because rank {rank} failed")]
    Ended {
        /// The rank that failed first.
        rank: usize,
    },
    /// The run is to stop (a signal).
    #[error("stopped on request")]
    Stopped,
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(candle_core::Error),
}

/// What is to blame for an error, other than the rank that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blame {
    /// Another rank.
    Rank(usize),
    /// MPI or NCCL: they cannot tell whether they failed because a process died.
    Engine,
}

impl Error {
    /// What is to blame, other than the rank that reports the error; `None`: nothing.
    pub fn blames(&self) -> Option<Blame> {
        match *self {
            Error::Deadline { peer, .. }
            | Error::Silent { peer, .. }
            | Error::Order { peer, .. }
            | Error::Form { peer, .. }
            | Error::Left { peer, .. }
            | Error::Corrupt { peer, .. }
            | Error::Gone { rank: peer } => Some(Blame::Rank(peer)),
            Error::Engine { .. } => Some(Blame::Engine),
            _ => None,
        }
    }

    /// The error of a communicator inside `error`, if that is what it was before it passed through
    /// Candle: a custom operator can return only Candle's.
    pub fn find(error: &candle_core::Error) -> Option<&Error> {
        use candle_core::Error as Candle;
        let boxed: &(dyn StdError + 'static) = match error {
            Candle::Io(error) => error.get_ref()?,
            Candle::WrappedContext { wrapped, .. } => wrapped.as_ref(),
            Candle::WithBacktrace { inner, .. }
            | Candle::Context { inner, .. }
            | Candle::WithPath { inner, .. } => return Error::find(inner),
            _ => return None,
        };
        if let Some(candle) = boxed.downcast_ref() {
            return Error::find(candle);
        }
        match boxed.downcast_ref()? {
            Error::Tensor(candle) => Error::find(candle),
            error => Some(error),
        }
    }

    /// Takes out what [`Error::find`] finds, or gives `error` back.
    fn recover(error: candle_core::Error) -> std::result::Result<Error, candle_core::Error> {
        use candle_core::Error as Candle;
        if Error::find(&error).is_none() {
            return Err(error);
        }
        let boxed: Box<dyn StdError + Send + Sync> = match error {
            Candle::Io(error) => error.into_inner().ok_or(Candle::UnwrapNone)?,
            Candle::WrappedContext { wrapped, .. } => wrapped,
            Candle::WithBacktrace { inner, .. }
            | Candle::Context { inner, .. }
            | Candle::WithPath { inner, .. } => return Error::recover(*inner),
            error => return Err(error),
        };
        match boxed.downcast::<Error>() {
            Ok(error) => Ok(*error),
            Err(boxed) => match boxed.downcast::<candle_core::Error>() {
                Ok(error) => Error::recover(*error),
                Err(boxed) => Err(Candle::Io(io::Error::other(boxed))),
            },
        }
    }
}

/// An error of a communicator that passed through Candle comes out as what it was.
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Error {
        Error::recover(error).unwrap_or_else(Error::Tensor)
    }
}

/// Travels as an input/output error, the one of Candle's wrappers that keeps both the text and the
/// value: see [`Error::find`].
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> candle_core::Error {
        match error {
            Error::Tensor(error) => error,
            error => candle_core::Error::Io(io::Error::other(error)),
        }
    }
}

/// Why a group of ranks ended: the first cause.
#[derive(Debug)]
pub struct Failure<E> {
    /// The rank that failed first.
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
    /// The rank is in another process, which reports the cause.
    Elsewhere,
}

impl<E: Display> Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.cause)
    }
}

impl<E: Display> Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Panic(message) => write!(f, "panicked: {message}"),
            Cause::Error(error) => Display::fmt(error, f),
            Cause::Elsewhere => f.write_str("failed in another process, which says why"),
        }
    }
}

/// Of any cause: `anyhow::Error` and boxed errors are none themselves. So the cause is no source; it is all of the text after the rank, and
/// [`Failure::cause`] has it.
impl<E: Debug + Display> StdError for Failure<E> {}
