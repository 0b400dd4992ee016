//! Errors of a command: messages with hints, and an exit code.

use annulus_data::DataError;
use annulus_experiment::{Problem, Problems};
use annulus_model::WeightsError;
use annulus_train::{Exit, TrainError};

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// How the program ends.
    pub exit: Exit,
    /// Errors with their hints; empty if another process reports them.
    pub problems: Problems,
}

impl Failure {
    /// One error, with a hint if there is one.
    pub fn new(exit: Exit, message: impl Into<String>, hint: Option<String>) -> Failure {
        let problem = Problem { hint, ..Problem::new(message) };
        Failure { exit, problems: problem.into() }
    }

    /// An error in the command line or in an experiment, with a hint.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message, Some(hint.into()))
    }

    /// A mistake in this program, or something that the system refuses, with no way out.
    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Internal, message, None)
    }

    /// Errors in data, in a model or in a tokenizer.
    pub(crate) fn data(problems: Problems) -> Failure {
        Failure { exit: Exit::Data, problems }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        Failure { exit: Exit::Usage, problems }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        match error {
            TrainError::Problems(problems) => problems.into(),
            TrainError::Config(problems) => Failure::data(problems),
            error => Failure::new(error.exit(), error.to_string(), error.hint()),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Failure {
        Failure::new(Exit::Data, error.to_string(), error.hint())
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        Failure::new(Exit::Data, error.to_string(), error.hint())
    }
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Failure {
        Failure::internal(error.to_string())
    }
}
