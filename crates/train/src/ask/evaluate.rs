//! The loss of held-out sequences; for recall tasks also how many answers are right.

use std::ops::Range;

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
#[derive(Clone, Debug)]
pub(crate) struct Evaluation {
    /// The mean loss over all targets.
    pub(crate) loss: f64,
    /// The mean loss over the targets of each source.
    pub(crate) by_source: Vec<f64>,
    /// The fraction of answers that are right; `None` where answers are not exact.
    pub(crate) accuracy: Option<f64>,
}

impl Trainer {
    /// Evaluates all held-out sequences, source by source, distributed over the replicas in turn. `progress(done, total)` counts this
    /// replica's.
    pub(crate) fn evaluate(
        &self,
        held_out: &HeldOut,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Evaluation> {
        let rank = &self.rank;
        let label = |hop| Label { step: self.finished, pass: "evaluate", hop, layer: 0 };
        let mut weights = self.weights(self.finished);
        let own = |sequences: Range<usize>| sequences.skip(rank.replica()).step_by(rank.setup.data);
        let sources = held_out.by_source();
        let total = sources.iter().cloned().map(|source| own(source).count()).sum();
        let (mut done, mut right, mut losses) = (0, Partial::default(), Vec::new());
        for (hop, source) in sources.into_iter().enumerate() {
            // All ranks gather weights equally often, whether their replica has a sequence left or not.
            let most = source.len().div_ceil(rank.setup.data).div_ceil(rank.setup.micro_batch);
            let own: Vec<usize> = own(source).collect();
            let mut parts = own.chunks(rank.setup.micro_batch);
            let mut loss = Partial::default();
            for _ in 0..most {
                let part = parts.next().unwrap_or_default();
                let (part_loss, part_right) = self.evaluate_part(&mut weights, held_out, part)?;
                loss += part_loss;
                right += part_right;
                done += part.len();
                if !part.is_empty() {
                    progress(done, total);
                }
            }
            losses.push(loss.total(&rank.mesh, label(hop))?);
        }
        let loss: Total = losses.iter().copied().sum();
        let next = losses.len();
        finite(loss.mean(), || "the validation loss".into()).inspect_err(|_| {
            // All ranks get the same error for the loss: one that ended because another did would save these weights.
            let _ = rank.comm.barrier(label(next + 1));
        })?;
        let right = held_out.exact.then(|| right.total(&rank.mesh, label(next))).transpose()?;
        let by_source = losses.into_iter().map(Total::mean).collect();
        Ok(Evaluation { loss: loss.mean(), by_source, accuracy: right.map(Total::mean) })
    }

    /// The loss of some held-out sequences, and how many of their answers are right where these are exact. Of no sequence, weights are only
    /// gathered.
    fn evaluate_part(
        &self,
        weights: &mut WeightSource<'_>,
        held_out: &HeldOut,
        part: &[usize],
    ) -> Result<(Partial, Partial)> {
        let rank = &self.rank;
        if part.is_empty() {
            for _ in 0..=usize::from(held_out.exact) {
                weights.gather_only(rank)?;
            }
            return Ok(Default::default());
        }
        let micro = rank.micro_batch(self.finished, part.len(), |positions, into| {
            part.iter().try_for_each(|&at| held_out.read(at, positions, into))
        })?;
        let loss = rank.loss(weights, &micro)?;
        let right = if held_out.exact { self.right(weights, &micro)? } else { Partial::default() };
        Ok((loss, right))
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
