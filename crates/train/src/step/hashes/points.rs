//! Hashes of what a step reads, computes and sends, in its order: they show where in a step two runs begin to differ.
//!
//! What is computed between stages is hashed row by row, and rows are added: like a tensor's hash ([`crate::step::hashes`]), a point's does
//! not depend on which rank computes which rows, in which micro-batch. Hashes of messages do depend on how the run is split.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_comm::{Communicator, Exchanged, Label, WEIGHTS, all_gather_values};
use annulus_model::Stage;
use candle_core::{DType, Tensor};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::step::hashes::Hashes;
use crate::step::measure::spans;
use crate::step::rank::MicroBatch;
use crate::{Result, TrainError};

/// The name of the point of what a step reads.
pub(crate) const BATCH: &str = "batch";
/// How many rows are copied at a time to be hashed.
const AT_ONCE: usize = 1024;

/// A point in a step. Variants are in the order of a step; stages of backward count down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum At {
    /// The step's inputs and targets.
    Batch,
    /// A parameter as the step reads it.
    Weight(String),
    /// A message that brings weights, by their stage.
    Gather(usize),
    /// In a stage's forward pass: at a hop, or its output.
    Forward(usize, In),
    /// In the backward pass of the stage that is so many before the last: at a hop, or the gradient of its input.
    Backward(usize, In),
    /// A message of another pass, with layer and hop: sums of gradients, rows between tensor-parallel ranks.
    Other(String, usize, usize),
}

/// A point within a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum In {
    Hop(usize),
    End,
}

/// The hashes of a step's points: of what is computed, and of what was sent and received, by sender.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Points {
    pub(crate) computed: Vec<(At, u64)>,
    pub(crate) messages: Vec<(At, Messages)>,
}

/// Hashes of a hop's messages, by the rank that sent them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Messages {
    pub(crate) sent: BTreeMap<usize, u64>,
    pub(crate) came: BTreeMap<usize, u64>,
}

/// Where a micro-batch on one rank is hashed.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// The number of the micro-batch's first sequence in the step.
    pub(crate) first: usize,
    pub(crate) found: PointHashes,
}

/// What a rank has hashed of a step so far.
pub(crate) type PointHashes = Arc<Mutex<BTreeMap<At, u64>>>;

impl MicroBatch {
    /// The micro-batch, with what is computed of it hashed into `found`, if given; `first` is the number of its first sequence in the step.
    pub(crate) fn watched(self, found: Option<&PointHashes>, first: usize) -> Result<MicroBatch> {
        let watch = found.map(|found| Watch { first, found: found.clone() });
        let micro = MicroBatch { watch, ..self };
        if let Some(watch) = &micro.watch {
            let rows = micro.batch()?;
            let hash = watch.hash(micro.places(0), rows.iter().map(bytemuck::bytes_of));
            add(&mut watch.found.lock(), At::Batch, hash);
        }
        Ok(micro)
    }

    /// Hashes `x` [.., D], rows between two stages, where the step is hashed; scalars are not.
    pub(crate) fn pass(&self, at: impl FnOnce() -> At, x: &Tensor) -> Result<()> {
        let Some(watch) = self.watch.as_ref().filter(|_| x.rank() > 0) else { return Ok(()) };
        let (rows, mut sum) = (x.flatten_to(x.rank() - 2)?, 0_u64);
        let (all, width) = rows.dims2()?;
        for from in (0..all).step_by(AT_ONCE) {
            let some = rows.narrow(0, from, AT_ONCE.min(all - from))?;
            let values: Vec<f32> = some.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            let bytes = bytemuck::cast_slice(&values).chunks(width * size_of::<f32>());
            sum = sum.wrapping_add(watch.hash(self.places(from), bytes));
        }
        add(&mut watch.found.lock(), at(), sum);
        Ok(())
    }

    /// For this rank's rows from the `from`-th on, in order: the sequence by its number in the micro-batch, and the position.
    fn places(&self, from: usize) -> impl Iterator<Item = [usize; 2]> + '_ {
        let positions = self.shard.attention.positions();
        let place = |row: usize| {
            let position = positions.at(row % positions.tokens()).unwrap_or_default();
            [row / positions.tokens(), position]
        };
        self.shard.tensor.own(self.shard.inputs.elem_count()).skip(from).map(place)
    }

    /// Input and target of each of this rank's rows.
    fn batch(&self) -> Result<Vec<[i64; 2]>> {
        let values = |tensor: &Tensor| -> candle_core::Result<Vec<i64>> {
            tensor.to_dtype(DType::I64)?.flatten_all()?.to_vec1()
        };
        let (inputs, targets) = (values(&self.shard.inputs)?, values(&self.shard.targets)?);
        let own = self.shard.tensor.own(inputs.len());
        Ok(own.map(|row| [inputs[row], targets[row]]).collect())
    }
}

impl Watch {
    /// The sum over rows of a hash of each row's place in the step and of its bits.
    fn hash<'a>(
        &self,
        places: impl Iterator<Item = [usize; 2]>,
        rows: impl Iterator<Item = &'a [u8]>,
    ) -> u64 {
        let hash = |([sequence, position], row): ([usize; 2], &[u8])| {
            let place = ((self.first + sequence) as u64) << 40 | position as u64;
            XxHash3_64::oneshot_with_seed(place, row)
        };
        places.zip(rows).map(hash).fold(0, u64::wrapping_add)
    }
}

impl Points {
    /// The points of one rank: what it has `found`, the hashes of its weights, and its messages.
    pub(crate) fn own(
        weights: &Hashes,
        found: &PointHashes,
        rank: usize,
        exchanged: BTreeMap<Label, Exchanged>,
        stages: usize,
    ) -> Points {
        let found = std::mem::take(&mut *found.lock());
        let weights = weights.iter().map(|(name, hash)| (At::Weight(name.clone()), *hash));
        let messages = exchanged.into_iter().map(|(label, Exchanged { sent, came })| {
            let sent = BTreeMap::from([(rank, sent)]);
            (At::of(label, stages), Messages { sent, came })
        });
        Points {
            computed: found.into_iter().chain(weights).collect(),
            messages: messages.collect(),
        }
    }

    /// The points of all ranks, added up, in the order of the step. All ranks must call it.
    pub(crate) fn gather(self, comm: &dyn Communicator, step: u64) -> Result<Points> {
        let label = Label { step, pass: "hashes", hop: 1, layer: 0 };
        let own = serde_json::to_vec(&self).map_err(|error| internal(&error))?;
        let (mut computed, mut messages) = (BTreeMap::new(), BTreeMap::<At, Messages>::new());
        for of_rank in all_gather_values(comm, label, &own)? {
            let points: Points = parsed(&of_rank)?;
            for (at, hash) in points.computed {
                add(&mut computed, at, hash);
            }
            for (at, Messages { sent, came }) in points.messages {
                let all = messages.entry(at).or_default();
                for (sums, more) in [(&mut all.sent, sent), (&mut all.came, came)] {
                    for (rank, hash) in more {
                        add(sums, rank, hash);
                    }
                }
            }
        }
        let (computed, messages) = (computed.into_iter().collect(), messages.into_iter().collect());
        Ok(Points { computed, messages })
    }
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, key: K, hash: u64) {
    let sum = sums.entry(key).or_default();
    *sum = sum.wrapping_add(hash);
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| internal(&error))
}

fn internal(error: &serde_json::Error) -> TrainError {
    TrainError::Internal(format!("hashes that are not JSON: {error}"))
}

impl Messages {
    /// Ranks whose messages were received other than they were sent.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = usize> + '_ {
        let came = |rank: &usize| self.came.get(rank).copied().unwrap_or_default();
        self.sent.iter().filter(move |(rank, sent)| came(rank) != **sent).map(|(rank, _)| *rank)
    }
}

impl At {
    /// The point of a message. The attention of layer n is stage 1 + 2n: behind the embedding and two stages for each layer before.
    fn of(label: Label, stages: usize) -> At {
        let stage = 1 + 2 * label.layer;
        match label.pass {
            "forward" => At::Forward(stage, In::Hop(label.hop)),
            "backward" => At::Backward(stages - 1 - stage, In::Hop(label.hop)),
            WEIGHTS => At::Gather(label.layer),
            pass => At::Other(pass.to_owned(), label.layer, label.hop),
        }
    }

    /// The point of a stage's output.
    pub(crate) fn output(stage: usize) -> At {
        At::Forward(stage, In::End)
    }

    /// The point of the gradient of a stage's input.
    pub(crate) fn gradient(stage: usize, stages: usize) -> At {
        At::Backward(stages - 1 - stage, In::End)
    }

    /// The point's name in files: stages as in traces, messages as in errors.
    pub(crate) fn name(&self, stages: &[Box<dyn Stage>]) -> String {
        let layer = |stage: usize| (stage - 1) / 2;
        let backward = |before: usize| stages.len() - 1 - before;
        match self {
            At::Batch => String::from(BATCH),
            At::Weight(name) => name.clone(),
            At::Gather(stage) => format!("weights, stage {stage}"),
            At::Forward(stage, In::Hop(hop)) => {
                format!("forward, layer {}, hop {hop}", layer(*stage))
            }
            At::Forward(stage, In::End) => spans::name(stages[*stage].as_ref(), "forward"),
            At::Backward(before, In::Hop(hop)) => {
                format!("backward, layer {}, hop {hop}", layer(backward(*before)))
            }
            At::Backward(before, In::End) => {
                spans::name(stages[backward(*before)].as_ref(), "backward")
            }
            At::Other(pass, 0, hop) => format!("{pass}, hop {hop}"),
            At::Other(pass, layer, hop) => format!("{pass}, layer {layer}, hop {hop}"),
        }
    }
}
