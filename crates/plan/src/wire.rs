//! Bytes of a row on the wire, and the cost of narrow sums.

use annulus_experiment::wire_key;
use annulus_sequence::{BlockShape, Part, Route};

use crate::Plan;

impl Plan {
    /// Bytes of one row of one head on the wire, by part.
    pub fn block(&self) -> BlockShape {
        let wire = self.experiment.wire().map(|_, element| element.bytes());
        let order_free = self.experiment.block().is_some();
        BlockShape { batch: self.micro_batch, head_dim: self.shape.head_dim, wire, order_free }
    }

    /// Warnings about gradients that are summed in 16 bits on the wire.
    pub(crate) fn narrow_sums(&self) -> Vec<String> {
        let ranks = self.experiment.mesh.sequence;
        let wire = self.experiment.wire();
        let sums = [
            (Part::Gradient, "gradients of keys and values"),
            (Part::QueryGradient, "gradients of queries"),
        ];
        let narrow = sums.into_iter().filter(|(part, _)| wire.of(*part).bytes() < 4);
        let proofs = || self.schedules.iter().flat_map(|schedules| schedules.proofs());
        let sent = narrow.filter(|(part, _)| proofs().any(|proof| proof.sent.contains(part)));
        let warning = |(part, what): (Part, &str)| {
            let (word, key) = (wire.of(part).word(), wire_key(part));
            let once = part == Part::Gradient
                && self.groups.iter().all(|group| group.route.how == Route::Direct);
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
        sent.map(warning).collect()
    }
}
