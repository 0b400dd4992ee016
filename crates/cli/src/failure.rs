//! What went wrong, as the outside sees it: a text, a hint, an exit code.

use annulus_data::DataError;
use annulus_experiment::Problems;
use annulus_model::WeightsError;
use annulus_train::TrainError;

/// An error with its exit code. The text may hold several `error:` blocks already.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

/// Exit codes that are not `TrainError`'s.
pub(crate) const USAGE: u8 = 2;
pub(crate) const DATA: u8 = 3;
pub(crate) const EXPECT: u8 = 10;
pub(crate) const PREEMPTED: u8 = 75;

impl Failure {
    pub(crate) fn data(text: impl Into<String>) -> Failure {
        Failure { code: DATA, text: text.into(), hint: None }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { code: USAGE, text: text.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        Failure { code: USAGE, text: problems.to_string(), hint: None }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        Failure { code: error.exit_code(), text: error.to_string(), hint: error.hint() }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Failure {
        Failure { code: DATA, text: error.to_string(), hint: error.hint() }
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        Failure { code: DATA, text: error.to_string(), hint: error.hint() }
    }
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Failure {
        Failure { code: 1, text: error.to_string(), hint: None }
    }
}
