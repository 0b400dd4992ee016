//! What is measured: set up once, then run sample by sample.

use anyhow::Result;
use serde_json::{Map, Value};

use crate::statistics::Quartiles;

/// Fields of a line.
pub(crate) type Fields = Map<String, Value>;

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    /// What else is known of it: a loss, the memory so far.
    pub(crate) fields: Fields,
}

/// Something that can be timed.
pub(crate) trait Subject {
    /// What it is, as fields of a line.
    fn describe(&self) -> Fields;
    /// The threads it computes with.
    fn threads(&self) -> usize;
    /// Runs once. The time leaves out whatever is not the subject.
    fn sample(&mut self) -> Result<Sample>;
    /// What is measured beside every sample, so that both see the same machine.
    fn beside(&mut self) {}
    /// What times come to: speeds, memory.
    fn summary(&self, seconds: Quartiles, samples: &[Sample]) -> Fields;
    /// The figure that `--at-least` is about where nothing else is measured.
    fn figure(&self, _seconds: Quartiles) -> Option<f64> {
        None
    }
    /// Whether a peer's samples, its warm-up first, agree with the own: fields to print.
    fn agreement(&self, _ours: &[Sample], _theirs: &[Sample]) -> Result<Fields> {
        Ok(Fields::new())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Takes as many seconds as it has been run.
    #[derive(Default)]
    pub(crate) struct Counter(u32);

    impl Subject for Counter {
        fn describe(&self) -> Fields {
            Fields::new()
        }
        fn threads(&self) -> usize {
            1
        }
        fn sample(&mut self) -> Result<Sample> {
            self.0 += 1;
            let fields = Fields::from_iter([("count".to_owned(), json!(self.0))]);
            Ok(Sample { seconds: f64::from(self.0), fields })
        }
        fn summary(&self, seconds: Quartiles, samples: &[Sample]) -> Fields {
            let of = format!("{} of {}", seconds.median, samples.len());
            Fields::from_iter([("median".to_owned(), json!(of))])
        }
        fn figure(&self, seconds: Quartiles) -> Option<f64> {
            Some(1.0 / seconds.median)
        }
    }
}
