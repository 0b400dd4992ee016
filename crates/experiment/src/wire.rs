//! The section `attention.wire`: comm dtypes.
//!
//! Values are rounded to theirs by the rank that owns them, sent or not, so that a file means the same on any number of ranks; sums are
//! rounded once per move, and are f32 where they are added to.

use annulus_sequence::{Part, Wire};

use annulus_architecture::Element;
use annulus_yaml::Problem;

use crate::Experiment;

/// The key of a part under `attention.wire`.
pub fn wire_key(part: Part) -> &'static str {
    match part {
        Part::Query => "query",
        Part::KeyValue | Part::Key | Part::Value => "key_value",
        Part::Output => "output",
        Part::QueryGradient => "query_gradient",
        Part::Gradient => "gradient",
    }
}

impl Experiment {
    /// The comm dtype of every part: as written, or the model's for values and f32 for sums.
    pub fn wire(&self) -> Wire<Element> {
        let values = Element::from(self.model.dtype);
        self.attention.wire.map(|part, written| {
            written.unwrap_or(if part.is_sum() { Element::F32 } else { values })
        })
    }
}

/// Refuses comm dtypes wider than the model's, or another of the same width: they would gain nothing.
pub(crate) fn gains(experiment: &Experiment) -> Vec<Problem> {
    let dtype = Element::from(experiment.model.dtype);
    let problem = |part: Part| {
        let element = experiment.attention.wire.of(part)?;
        if part.is_sum() || element == dtype || element.bytes() < dtype.bytes() {
            return None;
        }
        let key = format!("attention.wire.{}", wire_key(part));
        let (word, own) = (element.word(), dtype.word());
        let message = format!("`{key}` is {word}, but the model computes in {own}");
        let hint = format!("remove it: {own} travels as it is");
        Some(experiment.places.problem(&key, message).hint(hint))
    };
    [Part::Query, Part::KeyValue, Part::Output].into_iter().filter_map(problem).collect()
}
