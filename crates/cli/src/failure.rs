//! What went wrong, as the outside sees it: mistakes with their hints, and an exit code.

use annulus_data::DataError;
use annulus_experiment::{Problem, Problems};
use annulus_model::WeightsError;
use annulus_train::TrainError;

/// Mistakes and their exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) problems: Problems,
}

/// Exit codes that are not `TrainError`'s.
pub(crate) const INTERNAL: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const DATA: u8 = 3;
pub(crate) const EXPECT: u8 = 10;
pub(crate) const PREEMPTED: u8 = 75;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>, hint: Option<String>) -> Failure {
        let problem = Problem { hint, ..Problem::new(message) };
        Failure { code, problems: problem.into() }
    }

    pub(crate) fn data(message: impl Into<String>) -> Failure {
        Failure::new(DATA, message, None)
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

#[cfg(test)]
mod tests;
