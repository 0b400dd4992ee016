//! The loss of held-out sequences; for recall tasks also how many answers are right.

use annulus_comm::Label;
use annulus_model::Judged;
use annulus_ops::IGNORED;

use crate::Result;
use crate::setup::data::HeldOut;
use crate::step::finite::finite;
use crate::step::rank::MicroBatch;
use crate::step::state::gathered::WeightSource;
use crate::step::sum::{Partial, Total};
use crate::step::trainer::Trainer;

/// Data marks ignored targets with the value that the loss ignores.
const _: () = assert!(annulus_data::IGNORED == IGNORED);

/// The result of an evaluation, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    /// The mean loss over all targets.
    pub(crate) loss: f64,
    /// The fraction of answers that are right; `None` where answers are not exact.
    pub(crate) accuracy: Option<f64>,
}

impl Trainer {
    /// Evaluates all held-out sequences, distributed over the replicas in turn. `progress(done, total)` counts this replica's.
    pub(crate) fn evaluate(
        &self,
        held_out: &HeldOut,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Evaluation> {
        let rank = &self.rank;
        let (mut loss, mut right) = (Partial::default(), Partial::default());
        let own: Vec<usize> =
            (rank.replica()..held_out.sequences).step_by(rank.setup.data).collect();
        let mut weights = self.weights(self.finished);
        let (most, at_once) =
            (held_out.sequences.div_ceil(rank.setup.data), rank.setup.micro_batch);
        let mut parts = own.chunks(at_once);
        // All ranks gather weights equally often, whether their replica has a sequence left or not.
        for index in 0..most.div_ceil(at_once) {
            let Some(part) = parts.next() else {
                for _ in 0..=usize::from(held_out.exact) {
                    weights.pass_by(rank)?;
                }
                continue;
            };
            let micro = rank.micro_batch(self.finished, part.len(), |positions, into| {
                part.iter().try_for_each(|&at| held_out.read(at, positions, into))
            })?;
            loss += rank.loss(&mut weights, &micro)?;
            if held_out.exact {
                right += self.right(&mut weights, &micro)?;
            }
            progress(index * at_once + part.len(), own.len());
        }
        let label = |hop| Label { step: self.finished, pass: "evaluate", hop, layer: 0 };
        let loss = loss.total(&rank.mesh, label(0))?;
        finite(loss.mean(), || "the validation loss".into()).inspect_err(|_| {
            // All ranks get the same error for the loss: one that ended because another did would save these weights.
            let _ = rank.comm.barrier(label(2));
        })?;
        let right = held_out.exact.then(|| right.total(&rank.mesh, label(1))).transpose()?;
        Ok(Evaluation { loss: loss.mean(), accuracy: right.map(Total::mean) })
    }

    /// How many targets have the largest logit, and how many targets there are.
    fn right(&self, weights: &mut WeightSource<'_>, micro: &MicroBatch) -> Result<Partial> {
        let judged = self.rank.judged(weights, &micro.shard)?;
        let targets: Vec<i64> = micro.shard.targets.flatten_all()?.to_vec1()?;
        // Tensor-parallel ranks have judged the same rows; each counts only its own.
        let own = self.rank.tensor.own(targets.len());
        let is_right = |judged: &&Judged| {
            own.contains(&judged.row) && i64::from(judged.predicted) == targets[judged.row]
        };
        Ok(Partial::new(judged.iter().filter(is_right).count() as f64, micro.targets))
    }
}
