//! A model's loss and prediction at every target of given sequences, over the ranks that would train on them.

use std::sync::Arc;

use annulus_comm::{Axis, Label};
use annulus_data::Sequence;
use annulus_model::{Judged, Llama, Specification, Weights};
use candle_core::{Device, Tensor};

use crate::setup::shared::once;
use crate::setup::weights::InitialWeights;
use crate::step::finite::finite;
use crate::step::measure::alive::calling;
use crate::step::rank::{MicroBatch, Rank};
use crate::step::state::gathered::WeightSource;
use crate::step::state::parameters::own_copy;
use crate::step::state::side_by_side::SideBySide;
use crate::{Result, Setup, TrainError};

/// A model's loss and prediction at one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The position of the input in the sequence; the target follows it.
    pub position: usize,
    /// Negative log-likelihood of the target, in nats.
    pub loss: f64,
    /// The most likely id, by the model.
    pub predicted: u32,
}

/// Makes a sequence to judge, by its index, when its turn comes; each is as long as the setup says. One that takes longer than the setup's
/// deadline ends the run, as its rank is taken for dead.
pub type Sequences<'a> = &'a (dyn Fn(usize) -> Result<Sequence> + Sync);

/// Judges every target of `count` sequences, one sequence at a time on every replica. Returns verdicts by sequence, in the order of
/// positions, the same in every process. `weights` are those of [`Setup::placed`]; `progress` is called once for each sequence, and may
/// take long: other ranks wait.
///
/// Logits of at most `setup.loss_chunk` targets are held at a time.
///
/// # Errors
/// Tensor-parallel ranks, weights that were placed for another setup, failures of the ranks and of making a sequence;
/// [`crate::TrainError::NotANumber`] for a loss that is not finite.
pub fn judge(
    setup: &Setup,
    weights: &DeviceWeights,
    count: usize,
    sequences: Sequences<'_>,
    progress: &(dyn Fn() + Sync),
) -> Result<Vec<Vec<Verdict>>> {
    weights.check(setup).map_err(|error| once(&setup.processes, error))?;
    let found = Arc::new(setup.clone()).run(|rank| {
        let leads = rank.mesh.coordinate(Axis::Sequence) == 0;
        let mut found = Vec::new();
        for index in (rank.replica()..count).step_by(rank.mesh.size(Axis::Data)) {
            let micro = rank.micro_batch_of(0, &[sequences(index)?])?;
            found.extend(
                rank.verdicts(weights.of(&rank), &micro)?.iter().map(|one| written(index, one)),
            );
            if leads {
                calling(rank.comm.as_ref(), progress);
            }
        }
        let label = Label { pass: "verdicts", ..Label::default() };
        let own = Tensor::from_vec(found.concat(), (found.len(), 4), &Device::Cpu)?;
        Ok(rank.comm.all_gather(label, &own)?)
    })?;
    let mut all = vec![Vec::new(); count];
    for of_rank in found {
        for row in of_rank.to_vec2::<f64>()? {
            let (index, verdict) = read(&row);
            all[index].push(verdict);
        }
    }
    for verdicts in &mut all {
        verdicts.sort_by_key(|verdict: &Verdict| verdict.position);
    }
    Ok(all)
}

/// A verdict on sequence `index` as numbers to send: whole numbers below 2^53 are exact in f64.
fn written(index: usize, verdict: &Verdict) -> [f64; 4] {
    let Verdict { position, loss, predicted } = *verdict;
    [index as f64, position as f64, loss, f64::from(predicted)]
}

fn read(row: &[f64]) -> (usize, Verdict) {
    (row[0] as usize, Verdict { position: row[1] as usize, loss: row[2], predicted: row[3] as u32 })
}

/// Weights on the devices that compute with them, by device of the process; its ranks share them.
#[derive(Clone, Debug)]
pub struct DeviceWeights(Vec<Weights>);

impl DeviceWeights {
    /// The weights on the first device.
    pub fn first(&self) -> &Weights {
        &self.0[0]
    }

    /// The weights that a rank computes with.
    pub(crate) fn of(&self, rank: &Rank) -> &Weights {
        &self.0[rank.device]
    }

    /// Checks that these were placed for a setup with the model and the devices of `setup`, whose ranks hold whole layers.
    pub(crate) fn check(&self, setup: &Setup) -> Result<()> {
        setup.check_whole_layers()?;
        let (devices, dtype) = (setup.processors.devices(), setup.config.dtype);
        let fits = |Specification { name, shape, .. }: &Specification| {
            let found = self.first().get(name);
            found.is_some_and(|weight| weight.dims() == shape && weight.dtype() == dtype)
        };
        let wrong = Llama::specification(&setup.config).into_iter().find(|one| !fits(one));
        let message = match (wrong, self.0.len()) {
            (Some(Specification { name, shape, .. }), _) => {
                let found = self.first().get(&name);
                let found = found.map_or("missing".to_owned(), |weight| {
                    format!("{:?} {:?}", weight.dtype(), weight.dims())
                });
                format!(
                    "among the placed weights `{name}` is {found}, expected {dtype:?} {shape:?}"
                )
            }
            (None, found) if found < devices => {
                format!("weights on {found} devices, expected them on {devices}")
            }
            _ => return Ok(()),
        };
        let hint = "place the weights by `Setup::placed` of the setup that they are used with";
        Err(TrainError::configuration(message, hint))
    }
}

impl Setup {
    /// `weights` in the dtype that layers compute in, on the devices of this setup.
    ///
    /// # Errors
    /// Tensor-parallel ranks, weights that are not those of the model, and failures of the devices.
    pub fn placed(&self, weights: &Weights) -> Result<DeviceWeights> {
        self.check_whole_layers()?;
        InitialWeights::from(weights.clone()).check(&self.config)?;
        let (names, side_by_side) = (weights.keys().collect(), SideBySide::of(self));
        let shape = |name: &String| weights[name].shape().clone();
        let on = |number: usize| {
            let device = self.processors.device(number);
            let own = |name: &String| {
                let weight = weights[name].to_dtype(self.config.dtype)?;
                // Memory of emulated devices is part of the host's.
                let own =
                    if number > 0 { own_copy(&weight, &device) } else { weight.to_device(&device) };
                Ok::<_, TrainError>(vec![own?.flatten_all()?])
            };
            side_by_side.weights(&names, shape, own, |pieces| Tensor::cat(pieces, 0))
        };
        (0..self.processors.devices()).map(on).collect::<Result<_>>().map(DeviceWeights)
    }
}

impl Rank {
    fn verdicts(&self, weights: &Weights, micro: &MicroBatch) -> Result<Vec<Verdict>> {
        let positions: Vec<usize> = self.attention.positions().iter().collect();
        let judged = self.judged(&mut WeightSource::Whole(weights), &micro.shard)?.into_iter();
        let verdict = |Judged { row, loss, predicted }| {
            let position = positions[row];
            finite(loss, || format!("the loss after position {position}"))?;
            Ok(Verdict { position, loss, predicted })
        };
        judged.map(verdict).collect()
    }
}
