//! The errors that end a run, by the class that a shell or a scheduler acts on.

use std::io;
use std::path::Path;

use annulus_comm::{Cause, Failure};
use annulus_data::{DataError, Texts};
use annulus_experiment::Problems;
use annulus_model::WeightsError;
use annulus_ops::gpu::HOST_IS_FULL;
use annulus_plan::Misfit;
use annulus_sequence::ScheduleError;

use crate::checkpoint::last_checkpoint;
use crate::{Exit, NonFinite};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, TrainError>;

/// Why a run, or a part of it, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The experiment does not allow what was asked for.
    #[error("{message}")]
    Configuration {
        /// What was found and what was wanted.
        message: String,
        /// The way out, if there is one.
        hint: Option<String>,
    },
    /// The experiment's file is wrong.
    #[error("{0}")]
    Problems(#[from] Problems),
    /// A file that the experiment names is missing, or a model's config.json is wrong by itself.
    #[error("{0}")]
    Config(Problems),
    /// The data is wrong.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The weights are wrong.
    #[error(transparent)]
    Model(#[from] WeightsError),
    /// A run folder or a checkpoint cannot be read, written, or used for this experiment.
    #[error("{message}")]
    Checkpoint {
        /// What was found and what was wanted.
        message: String,
        /// The way out, if there is one.
        hint: Option<String>,
    },
    /// A file of a run is not as it was written.
    #[error("{message}")]
    Unreadable {
        /// The file, the line where it has lines, and what was found.
        message: String,
        /// The way out.
        hint: String,
    },
    /// Offloaded tensors cannot be written or read.
    #[error("{message}")]
    Offload {
        /// The folder, and why it failed.
        message: String,
        /// The way out.
        hint: String,
    },
    /// The machine is too small, or allows too little.
    #[error(transparent)]
    DoesNotFit(#[from] Misfit),
    /// A GPU had no memory left for what was wanted of it.
    #[error("a GPU has no memory left: {0}")]
    GpuIsFull(String),
    /// A loss or a gradient norm of training is not finite.
    #[error("{0}")]
    NonFinite(Box<NonFinite>),
    /// A model that is not being trained computed a value that is not finite.
    #[error("{what} is {value}, expected a finite number")]
    NotANumber {
        /// What the value is of.
        what: String,
        /// The value: NaN or infinite.
        value: f64,
    },
    /// A rank waited too long, or ranks disagree about what they do.
    #[error("{0}")]
    Comm(annulus_comm::Error),
    /// A rank panicked.
    #[error("rank {rank} died: {message}")]
    RankDied {
        /// The rank that panicked.
        rank: usize,
        /// The message of the panic.
        message: String,
    },
    /// A process cannot begin; all processes return this.
    #[error("{message}")]
    InProcess {
        /// Which process, and what it found.
        message: String,
        /// The way out, if there is one.
        hint: Option<String>,
        /// How that process would end alone.
        exit: Exit,
    },
    /// One rank failed.
    #[error("rank {rank}: {source}")]
    OnRank {
        /// The rank that failed.
        rank: usize,
        /// The rank's error.
        source: Box<TrainError>,
    },
    /// A mistake in Annulus itself.
    #[error("{0}")]
    Internal(String),
}

impl TrainError {
    /// [`TrainError::Configuration`] with its way out.
    pub fn configuration(message: impl Into<String>, hint: impl Into<String>) -> TrainError {
        TrainError::Configuration { message: message.into(), hint: Some(hint.into()) }
    }

    /// [`TrainError::Checkpoint`] with its way out.
    pub fn checkpoint(message: impl Into<String>, hint: impl Into<String>) -> TrainError {
        TrainError::Checkpoint { message: message.into(), hint: Some(hint.into()) }
    }

    /// [`TrainError::Unreadable`] with its way out.
    pub fn unreadable(message: impl Into<String>, hint: impl Into<String>) -> TrainError {
        TrainError::Unreadable { message: message.into(), hint: hint.into() }
    }

    /// [`TrainError::Offload`] with its way out.
    pub fn offload(message: impl Into<String>, hint: impl Into<String>) -> TrainError {
        TrainError::Offload { message: message.into(), hint: hint.into() }
    }

    /// The exit code of `annulus`: see [`Exit`].
    pub fn exit_code(&self) -> u8 {
        self.exit().code()
    }

    /// How `annulus` ends with this error.
    pub fn exit(&self) -> Exit {
        match self {
            TrainError::Configuration { .. } | TrainError::Problems(_) => Exit::Usage,
            TrainError::Config(_)
            | TrainError::Data(_)
            | TrainError::Model(_)
            | TrainError::Unreadable { .. } => Exit::Data,
            TrainError::Checkpoint { .. } => Exit::Checkpoint,
            TrainError::DoesNotFit(_) | TrainError::GpuIsFull(_) => Exit::DoesNotFit,
            TrainError::NonFinite(_) | TrainError::NotANumber { .. } => Exit::NotFinite,
            TrainError::Comm(_) if self.is_deadline() => Exit::Deadline,
            TrainError::RankDied { .. } => Exit::RankDied,
            TrainError::Comm(_) if self.is_gone() => Exit::RankDied,
            TrainError::Comm(annulus_comm::Error::Corrupt { .. }) => Exit::Damaged,
            TrainError::InProcess { exit, .. } => *exit,
            TrainError::OnRank { source, .. } => source.exit(),
            TrainError::Comm(_) | TrainError::Offload { .. } | TrainError::Internal(_) => {
                Exit::Internal
            }
        }
    }

    /// The way out, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            TrainError::Configuration { hint, .. }
            | TrainError::Checkpoint { hint, .. }
            | TrainError::InProcess { hint, .. } => hint.clone(),
            TrainError::Offload { hint, .. } | TrainError::Unreadable { hint, .. } => {
                Some(hint.clone())
            }
            TrainError::DoesNotFit(misfit) => Some(misfit.hint()),
            TrainError::GpuIsFull(_) => Some(Misfit::hint_of_full()),
            TrainError::Data(error) => error.hint(),
            TrainError::Model(error) => error.hint(),
            TrainError::NonFinite(found) => Some(found.hint()),
            TrainError::NotANumber { .. } => {
                Some(
                    "training has diverged, or the weights are damaged: take an earlier checkpoint; to train, lower `optimizer.learning_rate`"
                        .into(),
                )
            }
            TrainError::Comm(annulus_comm::Error::Silent { .. }) => {
                Some("see whether that process hangs, or its host is overloaded".into())
            }
            TrainError::Comm(_) if self.is_deadline() => {
                Some("if the rank is slow rather than stuck, raise `mesh.deadline`".into())
            }
            TrainError::OnRank { source, .. } => source.hint(),
            _ => None,
        }
    }

    /// Adds to a loss that is not finite where its run is, and the checkpoint to go back to.
    pub(crate) fn in_run(self, folder: &Path) -> TrainError {
        match self {
            TrainError::NonFinite(found) => {
                let run = Some((folder.to_owned(), last_checkpoint(folder)));
                TrainError::NonFinite(Box::new(NonFinite { run, ..*found }))
            }
            error => error,
        }
    }

    /// Names the file and the line of a document that is too long, which are looked for in its `texts`.
    #[must_use]
    pub fn located(self, texts: &Texts<'_>) -> TrainError {
        match self {
            TrainError::Data(error) => TrainError::Data(error.located(texts)),
            error => error,
        }
    }

    /// Whether another rank or process failed, and this one ended only because of it.
    pub fn is_of_another(&self) -> bool {
        use annulus_comm::Error;
        matches!(self, TrainError::Comm(Error::Ended { .. }))
    }

    /// Whether this is a request to stop, or the end of a group for a reason that another rank knows: no failure of this rank.
    pub(crate) fn is_end(&self) -> bool {
        use annulus_comm::Error;
        matches!(self, TrainError::Comm(Error::Stopped | Error::Ended { .. } | Error::Left { .. }))
    }

    /// Whether the steps finished before are still good, and so worth saving.
    pub(crate) fn leaves_steps_whole(&self) -> bool {
        matches!(self, TrainError::Data(_) | TrainError::Offload { .. })
            || self.is_end()
            || self.is_deadline()
            || self.is_gone()
    }

    /// Which rank or process is to blame, where another noticed.
    pub(crate) fn blames(&self) -> Option<annulus_comm::Blame> {
        match self {
            TrainError::Comm(error) => error.blames(),
            _ => None,
        }
    }

    /// Whether a process is gone, or the engine that joins the processes.
    fn is_gone(&self) -> bool {
        use annulus_comm::Error;
        matches!(self, TrainError::Comm(Error::Gone { .. } | Error::Engine { .. }))
    }

    fn is_deadline(&self) -> bool {
        use annulus_comm::Error;
        matches!(self, TrainError::Comm(Error::Deadline { .. } | Error::Silent { .. }))
    }
}

/// How CUDA's driver and cuBLAS say that a GPU has no memory left. Their errors come as text: in Candle's, and in ours, which add to it what
/// was being done.
const FULL: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];

/// A communicator's error that was passed through Candle becomes itself again.
impl From<candle_core::Error> for TrainError {
    fn from(error: candle_core::Error) -> TrainError {
        annulus_comm::Error::from(error).into()
    }
}

impl From<annulus_comm::Error> for TrainError {
    fn from(error: annulus_comm::Error) -> TrainError {
        match error {
            annulus_comm::Error::Tensor(error) => {
                let message = error.to_string();
                if message.contains(HOST_IS_FULL) {
                    let hint = "name a folder on a disk by `memory.offload_folder`, or set `memory.offload=none`";
                    TrainError::offload(message, hint)
                } else if FULL.iter().any(|full| message.contains(full)) {
                    TrainError::GpuIsFull(message)
                } else {
                    TrainError::Internal(message)
                }
            }
            error => TrainError::Comm(error),
        }
    }
}

impl From<ScheduleError> for TrainError {
    fn from(error: ScheduleError) -> TrainError {
        TrainError::Configuration { message: error.to_string(), hint: None }
    }
}

impl From<Failure<TrainError>> for TrainError {
    fn from(failure: Failure<TrainError>) -> TrainError {
        match failure.cause {
            Cause::Panic(message) => TrainError::RankDied { rank: failure.rank, message },
            Cause::Elsewhere => annulus_comm::Error::Ended { rank: failure.rank }.into(),
            // These errors name ranks themselves.
            Cause::Error(error @ (TrainError::NonFinite(_) | TrainError::Comm(_))) => error,
            // Such errors are mostly rank 0's, which makes all files: its number would say nothing.
            Cause::Error(error @ TrainError::Checkpoint { .. }) if failure.rank == 0 => error,
            Cause::Error(error) => {
                TrainError::OnRank { rank: failure.rank, source: Box::new(error) }
            }
        }
    }
}

/// The error that `what` failed on `path` in a run folder.
pub(crate) fn failure(what: &str, path: &Path, error: &io::Error) -> TrainError {
    failure_in("output", what, path, error)
}

/// [`failure`] in the folder that `key` names.
pub(crate) fn failure_in(key: &str, what: &str, path: &Path, error: &io::Error) -> TrainError {
    let hint = match error.kind() {
        _ if annulus_files::is_full(error) => {
            Some(format!("free some space, or set another `{key}`"))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Some(format!("set an `{key}` that can be written"))
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            Some(format!("set an `{key}` that is a folder, or that does not exist yet"))
        }
        io::ErrorKind::Unsupported => {
            Some(format!("set an `{key}` on a file system that can, as those of local disks"))
        }
        _ => None,
    };
    TrainError::Checkpoint { message: format!("cannot {what} `{}`: {error}", path.display()), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gpu_is_no_mistake_of_the_program() {
        let said = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        let of_driver = candle_core::Error::Cuda(io::Error::other(said).into());
        let of_rank = Failure { rank: 3, cause: Cause::Error(TrainError::from(of_driver)) };
        let error = TrainError::from(of_rank);
        assert_eq!(error.to_string(), format!("rank 3: a GPU has no memory left: {said}"));
        assert_eq!(error.exit(), Exit::DoesNotFit);
        assert!(error.hint().is_some_and(|hint| hint.starts_with("lower `data.tokens`")));
        let of_launch = candle_core::Error::Msg(format!("adamw over [1, 1, 1]: {said}"));
        assert_eq!(TrainError::from(of_launch.bt()).exit(), Exit::DoesNotFit);
        let other = candle_core::Error::Msg("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)".into());
        assert_eq!(TrainError::from(other).exit(), Exit::Internal);
    }

    #[test]
    fn a_full_host_is_no_full_gpu() {
        let driver = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        let said = format!("{HOST_IS_FULL} 9 bytes of the host's memory: {driver}");
        let error = TrainError::from(candle_core::Error::Msg(said.clone()).bt());
        assert!(matches!(&error, TrainError::Offload { message, .. } if message.contains(&said)));
        assert!(error.hint().is_some_and(|hint| hint.contains("memory.offload_folder")));
    }

    #[test]
    fn a_quota_that_is_used_up_has_the_way_out_of_a_full_disk() {
        for number in [libc::ENOSPC, libc::EDQUOT] {
            let error = io::Error::from_raw_os_error(number);
            let hint = failure("write", Path::new("run"), &error).hint();
            let wanted = "free some space, or set another `output`";
            assert_eq!(hint.as_deref(), Some(wanted));
        }
    }
}
