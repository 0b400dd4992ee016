//! Errors of a command: messages with hints, and an exit code.

use annulus_data::DataError;
use annulus_experiment::{Problem, Problems};
use annulus_model::WeightsError;
use annulus_train::{Exit, TrainError};

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the program.
    pub code: u8,
    /// Errors with their hints; empty if another process reports them.
    pub problems: Problems,
}

/// Exit codes that are not `TrainError`'s.
pub(crate) const INTERNAL: u8 = Exit::Internal.code();
pub(crate) const USAGE: u8 = Exit::Usage.code();
pub(crate) const DATA: u8 = Exit::Data.code();
pub(crate) const EXPECT: u8 = Exit::Expectation.code();
pub(crate) const PREEMPTED: u8 = Exit::Preempted.code();

impl Failure {
    /// One error, with a hint if there is one.
    pub fn new(code: u8, message: impl Into<String>, hint: Option<String>) -> Failure {
        let problem = Problem { hint, ..Problem::new(message) };
        Failure { code, problems: problem.into() }
    }

    /// An error in the command line or in an experiment, with a hint.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(USAGE, message, Some(hint.into()))
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        Failure { code: USAGE, problems }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        match error {
            TrainError::Problems(problems) => problems.into(),
            TrainError::Config(problems) => Failure { code: DATA, problems },
            error => Failure::new(error.exit_code(), error.to_string(), error.hint()),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Failure {
        Failure::new(DATA, error.to_string(), error.hint())
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        Failure::new(DATA, error.to_string(), error.hint())
    }
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Failure {
        Failure::new(INTERNAL, error.to_string(), None)
    }
}
