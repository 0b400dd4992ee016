//! Loss, logits and gradients of given sequences: no optimizer, no files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::{Axis, Communicator, Label, Traffic, threads};
use annulus_data::Sequence;
use annulus_model::Weights;
use annulus_sequence::Positions;
use candle_core::{Device, Tensor};

use crate::step::finite::{all_finite, finite};
use crate::step::gradients::{Gradients, PASS};
use crate::step::parameters::{Parameters, trained};
use crate::step::rank::Rank;
use crate::step::sum::{Partial, Total};
use crate::{Result, Setup};

/// What is asked for besides the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// All logits.
    pub logits: bool,
    /// The gradients of the mean loss.
    pub gradients: bool,
}

/// What was found.
#[derive(Debug)]
pub struct Scored {
    /// The mean over all targets.
    pub loss: f64,
    /// How many targets there are.
    pub targets: u64,
    /// f32 [B, S, V], positions in order.
    pub logits: Option<Tensor>,
    /// f32, of the mean loss, by name.
    pub gradients: Option<BTreeMap<String, Tensor>>,
    /// What every rank handed over for loss and gradients, by rank.
    pub traffic: Vec<Traffic>,
}

/// What one rank found.
struct Share {
    loss: Total,
    gradients: Option<Weights>,
    traffic: Traffic,
    positions: Positions,
    /// Of its replica's sequences, f32 [b, s, V].
    logits: Option<Tensor>,
}

/// Scores `sequences`, as many as `setup.data` divides, with `weights`, on the ranks of `setup`.
///
/// # Errors
/// Those of the ranks; [`crate::TrainError::NotANumber`] for a loss, logits or gradients that are none.
pub fn score(
    setup: &Setup,
    weights: &Weights,
    sequences: &[Sequence],
    want: Want,
) -> Result<Scored> {
    let setup = Arc::new(setup.clone());
    let options = threads::Options {
        world: setup.world(),
        deadline: setup.deadline,
        stop: Arc::new(AtomicBool::new(false)),
    };
    let program = |comm: Arc<dyn Communicator>| setup.rank(comm)?.score(weights, sequences, want);
    let mut shares = threads::run(&options, program)?;
    let logits = want.logits.then(|| whole(&setup, &shares, sequences.len())).transpose()?;
    let traffic = shares.iter().map(|share| share.traffic.clone()).collect();
    let Share { loss, gradients, .. } = shares.swap_remove(0);
    finite(loss.mean(), || "the loss".into())?;
    if let Some(logits) = &logits {
        all_finite(logits, || "a logit".into())?;
    }
    for (name, gradient) in gradients.iter().flatten() {
        all_finite(gradient, || format!("the gradient of `{name}`"))?;
    }
    Ok(Scored { loss: loss.mean(), targets: loss.count(), logits, gradients, traffic })
}

impl Rank {
    fn score(&self, weights: &Weights, sequences: &[Sequence], want: Want) -> Result<Share> {
        let config = &self.setup.config;
        let parameters =
            Parameters::new(weights, &trained(config), config.dtype, &self.setup.device())?;
        let mut gradients = Gradients::default();
        let mut loss = Partial::default();
        let mut micros = Vec::new();
        for part in self.micro_batches(sequences) {
            let micro = self.micro(1, part)?;
            loss += if want.gradients {
                self.backward(&parameters, &micro, &mut gradients)?.loss
            } else {
                self.loss(&parameters, &micro)?
            };
            micros.push(micro);
        }
        let gradients = if want.gradients {
            gradients.check(parameters.trained())?;
            Some(gradients.sum(&self.mesh, 1)?)
        } else {
            None
        };
        let loss = loss.total(&self.mesh, Label { step: 1, pass: PASS, ..Label::default() })?;
        let traffic = self.meter.take();
        let mut logits = Vec::new();
        for micro in micros.iter().filter(|_| want.logits) {
            logits.push(self.logits(&parameters.weights, &micro.shard)?);
        }
        Ok(Share {
            loss,
            gradients: gradients.map(|gradients| mean(gradients, loss)).transpose()?,
            traffic,
            positions: self.attention.positions().clone(),
            logits: want.logits.then(|| Tensor::cat(&logits, 0)).transpose()?,
        })
    }
}

/// Gradients of the mean from those of the sum, on the host.
fn mean(gradients: Weights, loss: Total) -> Result<Weights> {
    let by = 1.0 / loss.divisor();
    let mean = |(name, gradient): (String, Tensor)| {
        Ok((name, gradient.affine(by, 0.0)?.to_device(&Device::Cpu)?))
    };
    gradients.into_iter().map(mean).collect()
}

/// The logits of all ranks, put back where their positions are.
fn whole(setup: &Setup, shares: &[Share], batch: usize) -> Result<Tensor> {
    let (tokens, vocabulary) = (setup.tokens, setup.config.vocab_size);
    let mut all = vec![0.0_f32; batch * tokens * vocabulary];
    for (rank, share) in shares.iter().enumerate() {
        let first = setup.grid().coordinate(rank, Axis::Data) * (batch / setup.data);
        let logits: Option<Vec<f32>> =
            share.logits.as_ref().map(|t| t.flatten_all()?.to_vec1()).transpose()?;
        let places = (first..first + batch / setup.data)
            .flat_map(|b| share.positions.iter().map(move |position| b * tokens + position));
        for (row, place) in logits.iter().flat_map(|l| l.chunks(vocabulary)).zip(places) {
            all[place * vocabulary..][..vocabulary].copy_from_slice(row);
        }
    }
    Ok(Tensor::from_vec(all, (batch, tokens, vocabulary), &Device::Cpu)?)
}
