//! `attention.wire:`: the types of what travels.
//!
//! Values are rounded to theirs by the rank that has them, travelling or not, so that a file means
//! the same on any number of ranks; sums are rounded once per move, and are f32 where they are
//! added to.

use annulus_sequence::{BlockShape, Part, Route, Wire};

use annulus_architecture::Element;
use annulus_yaml::Problem;

use crate::{Experiment, Plan};

/// The key of a part under `attention.wire`.
pub(crate) fn wire_key(part: Part) -> &'static str {
    match part {
        Part::Query => "query",
        Part::KeyValue | Part::Key | Part::Value => "key_value",
        Part::Output => "output",
        Part::QueryGradient => "query_gradient",
        Part::Gradient => "gradient",
    }
}

impl Experiment {
    /// The type that every part travels in: as written, or values in the model's and sums in f32.
    pub fn wire(&self) -> Wire<Element> {
        let values = Element::from(self.model.dtype);
        self.attention.wire.map(|part, written| {
            written.unwrap_or(if part.is_sum() { Element::F32 } else { values })
        })
    }
}

impl Plan {
    /// What a row of a head weighs on the wire.
    pub(crate) fn block(&self) -> BlockShape {
        let wire = self.experiment.wire().map(|_, element| element.bytes());
        BlockShape { batch: self.micro_batch, head_dim: self.shape.head_dim, wire }
    }

    /// What one should know of the types of what travels in its schedules.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let ranks = self.experiment.mesh.sequence;
        let wire = self.experiment.wire();
        let sums = [
            (Part::Gradient, "gradients of keys and values"),
            (Part::QueryGradient, "gradients of queries"),
        ];
        let narrow = sums.into_iter().filter(|(part, _)| wire.of(*part).bytes() < 4);
        let proofs = || self.passes.iter().flat_map(|passes| passes.proofs());
        let sent = narrow.filter(|(part, _)| proofs().any(|proof| proof.sent.contains(part)));
        let doubt = |(part, what): (Part, &str)| {
            let (word, key) = (wire.of(part).word(), wire_key(part));
            let once = part == Part::Gradient
                && self.kinds.iter().all(|kind| kind.route.how == Route::Direct);
            let (grows, times) = if once {
                ("by every rank, their error grows", 2.0 * (ranks as f64 - 1.0) / ranks as f64)
            } else {
                let grows = "at every move, their error grows with the square root of the ranks,";
                (grows, ranks as f64 / 2.0)
            };
            format!(
                "{what} travel in {word}: rounded {grows} to about {:.1} times that of 2 ranks on \
                 {ranks}; `attention.wire.{key}: f32` keeps it",
                times.sqrt()
            )
        };
        sent.map(doubt).collect()
    }
}

/// Values that travel in more than they are computed with, or in as much of another type, would
/// gain nothing.
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
        let hint = format!("drop it: {own} travels as it is");
        Some(experiment.places.problem(&key, message).hint(hint))
    };
    [Part::Query, Part::KeyValue, Part::Output].into_iter().filter_map(problem).collect()
}
