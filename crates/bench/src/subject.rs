//! The subjects of measurements: set up once, then run sample by sample.

use anyhow::Result;
use serde_json::{Map, Value};

use crate::statistics::Quartiles;

/// Fields of a line.
pub(crate) type Fields = Map<String, Value>;

/// The fields of a JSON object.
pub(crate) fn fields(object: Value) -> Fields {
    match object {
        Value::Object(fields) => fields,
        other => unreachable!("`{other}` is no object"),
    }
}

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    /// Everything else that is known of it: a loss, the memory so far.
    pub(crate) fields: Fields,
}

/// One side of a comparison.
pub(crate) trait Side {
    /// One run, timed without whatever is not the subject.
    fn sample(&mut self) -> Result<Sample>;
    /// A measurement after every sample, so that both see the same machine.
    fn beside(&mut self) {}
    /// Seconds of processor time taken so far outside of this process.
    fn processor_seconds(&self) -> f64 {
        0.0
    }
}

/// A side that is ours, and described.
pub(crate) trait Subject: Side {
    /// The subject as fields of a line.
    fn describe(&self) -> Fields;
    /// Threads that compute.
    fn threads(&self) -> usize;
    /// Speeds and memory that follow from times.
    fn summary(&self, seconds: Quartiles, samples: &[Sample]) -> Fields;
    /// Whether there is a figure that `--at-least` is about where nothing else is measured.
    fn has_figure(&self) -> bool {
        false
    }
    /// That figure, after some samples; NaN if there is none.
    fn figure(&self) -> f64 {
        f64::NAN
    }
    /// Agreement of the own samples with a peer's, those to warm up first: fields to print.
    fn agreement(&self, _samples: &[Vec<Sample>; 2]) -> Result<Fields> {
        Ok(Fields::new())
    }
}
