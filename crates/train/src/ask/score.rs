//! Loss, logits and gradients of given sequences, without optimizer or files.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_comm::{Axis, Label};
use annulus_data::{Sequence, count_targets};
use annulus_model::Weights;
use annulus_sequence::Pass;
use candle_core::{Device, Tensor};

use crate::setup::shared::once;
use crate::setup::weights::InitialWeights;
use crate::step::finite::{all_finite, finite};
use crate::step::rank::{MicroBatch, Rank};
use crate::step::state::gathered::WeightSource;
use crate::step::state::gradients::{Gradients, PASS};
use crate::step::state::parameters::Parameters;
use crate::step::sum::{Partial, Total};
use crate::step::trainer::without_targets;
use crate::{Result, Setup, TrainError};

/// Which results are wanted besides the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreOutputs {
    /// Whether all logits are wanted.
    pub logits: bool,
    /// Whether the gradients of the mean loss are wanted.
    pub gradients: bool,
}

/// The results of scoring, the same in every process except for the logits.
#[derive(Debug)]
pub struct Scored {
    /// The mean loss over all targets.
    pub loss: f64,
    /// The number of targets.
    pub targets: u64,
    /// Logits f32 [B, S, V], positions in order; of several processes only in the first.
    pub logits: Option<Tensor>,
    /// Gradients of the mean loss by parameter, f32.
    pub gradients: Option<BTreeMap<String, Tensor>>,
}

/// One rank's share of the results.
struct Share {
    loss: Total,
    gradients: Option<Weights>,
    /// On rank 0 the logits of all ranks, each f32 [b, s, V] of the rank's sequences and positions.
    logits: Option<Vec<Tensor>>,
}

/// Scores `sequences` with `weights` on the ranks of `setup`; `setup.data` must divide their number.
///
/// # Errors
/// Tensor-parallel ranks, weights that are not those of the model, no sequences, or as many as replicas cannot share, or of another length
/// than the setup's, or without any target; failures of the ranks; [`TrainError::NotANumber`] for a loss, logits or gradients that are not
/// finite.
pub fn score(
    setup: &Setup,
    weights: &Weights,
    sequences: &[Sequence],
    want: ScoreOutputs,
) -> Result<Scored> {
    let initial = InitialWeights::from(weights.clone());
    let checked = setup.check_whole_layers().and_then(|()| initial.check(&setup.config));
    let checked = checked.and_then(|()| check(setup, sequences));
    checked.map_err(|error| once(&setup.processes, error))?;
    let setup = Arc::new(setup.clone());
    let Share { loss, gradients, logits } =
        setup.run(|rank| rank.score(&initial, sequences, want))?;
    let is_number = finite(loss.mean(), || "the loss".into());
    is_number.map_err(|error| once(&setup.processes, error))?;
    let logits = logits.map(|shares| whole(&setup, &shares, sequences.len())).transpose()?;
    if let Some(logits) = &logits {
        all_finite(logits, || "a logit".into())?;
    }
    for (name, gradient) in gradients.iter().flatten() {
        let is_number = all_finite(gradient, || format!("the gradient of `{name}`"));
        is_number.map_err(|error| once(&setup.processes, error))?;
    }
    Ok(Scored { loss: loss.mean(), targets: loss.count(), logits, gradients })
}

/// Checks that the replicas of `setup` can share `sequences`, that each has its length, and that not all are without targets.
fn check(setup: &Setup, sequences: &[Sequence]) -> Result<()> {
    let (found, replicas) = (sequences.len(), setup.data);
    if found == 0 || !found.is_multiple_of(replicas) {
        return Err(TrainError::configuration(
            format!("{found} sequences, expected a multiple of the {replicas} replicas"),
            "score at least one sequence on every replica, and as many on each",
        ));
    }
    sequences.iter().try_for_each(|sequence| setup.check_length(sequence))?;
    if sequences.iter().map(count_targets).sum::<usize>() == 0 {
        return Err(without_targets("no sequence has a target".into()));
    }
    Ok(())
}

impl Rank {
    fn score(
        &self,
        initial: &InitialWeights,
        sequences: &[Sequence],
        want: ScoreOutputs,
    ) -> Result<Share> {
        let device = self.backend.device();
        let parameters = Parameters::new(initial, &self.setup, device, 0, self.comm.rank())?;
        let own = &mut WeightSource::Whole(&parameters.weights);
        let mut gradients = Gradients::default();
        let mut loss = Partial::default();
        let mut micros = Vec::new();
        for rows in self.micro_batches(sequences.len()) {
            let micro = self.micro_batch_of(1, &sequences[rows])?;
            loss += if want.gradients {
                self.backward(own, &micro, &mut gradients, &mut |_, _| Ok(()))?.loss
            } else {
                self.loss(own, &micro)?
            };
            micros.push(micro);
        }
        let gradients = if want.gradients {
            gradients.check(parameters.trained())?;
            Some(gradients.sum(&self.backend, &self.mesh, &parameters, 1)?)
        } else {
            None
        };
        let loss = loss.total(&self.mesh, Label { step: 1, pass: PASS, ..Label::default() })?;
        Ok(Share {
            loss,
            gradients: gradients.map(|gradients| mean(gradients, loss)).transpose()?,
            logits: if want.logits { self.gathered_logits(own, &micros)? } else { None },
        })
    }

    /// The logits of all ranks for these micro-batches and the others', on rank 0.
    fn gathered_logits(
        &self,
        weights: &mut WeightSource<'_>,
        micros: &[MicroBatch],
    ) -> Result<Option<Vec<Tensor>>> {
        let logits = micros.iter().map(|micro| self.logits(weights, &micro.shard));
        let logits = logits.collect::<Result<Vec<_>>>()?;
        let own = Tensor::cat(&logits, 0)?.to_device(&Device::Cpu)?;
        let label = Label { step: 1, pass: "logits", ..Label::default() };
        Ok(self.comm.gather(label, &own, 0)?)
    }
}

/// Gradients of the mean, from those of the sum, on the host.
fn mean(gradients: Weights, loss: Total) -> Result<Weights> {
    let by = 1.0 / loss.divisor();
    let mean = |(name, gradient): (String, Tensor)| {
        Ok((name, gradient.affine(by, 0.0)?.to_device(&Device::Cpu)?))
    };
    gradients.into_iter().map(mean).collect()
}

/// The logits of all ranks, in the order of positions.
fn whole(setup: &Setup, shares: &[Tensor], batch: usize) -> Result<Tensor> {
    let (tokens, vocabulary) = (setup.tokens, setup.config.vocab_size);
    let mut all = vec![0.0_f32; batch * tokens * vocabulary];
    let (grid, positions) = (setup.grid(), &setup.groups[0].schedules.of(Pass::Forward).positions);
    for (rank, logits) in shares.iter().enumerate() {
        let first = grid.coordinate(rank, Axis::Data) * (batch / setup.data);
        let positions = &positions[grid.coordinate(rank, Axis::Sequence)];
        let logits: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        let places = (first..first + batch / setup.data)
            .flat_map(|b| positions.iter().map(move |position| b * tokens + position));
        for (row, place) in logits.chunks(vocabulary).zip(places) {
            all[place * vocabulary..][..vocabulary].copy_from_slice(row);
        }
    }
    Ok(Tensor::from_vec(all, (batch, tokens, vocabulary), &Device::Cpu)?)
}
