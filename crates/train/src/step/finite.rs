//! A loss or norm that is not finite: every rank decides alike, and the error says where it was first seen.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use annulus_comm::{Communicator, Label, all_gather_values};
use candle_core::{DType, Tensor};

use crate::checkpoint::checkpoint_folder;
use crate::{Result, TrainError};

/// A loss or gradient norm that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// The step, from 1.
    pub step: u64,
    /// The tag of the value: `train/loss` or `train/grad_norm`.
    pub tag: &'static str,
    /// The loss or norm itself: NaN or infinite.
    pub value: f64,
    /// Where a value that is not finite was first seen; `None`: every loss was finite, only the gradients were not.
    pub origin: Option<Origin>,
    /// The sequences, from 0 in the step's batch, that were being computed where it was first seen.
    pub sequences: Range<usize>,
    /// The run's folder, and the step of its last checkpoint; `None`: no run trained.
    pub run: Option<(PathBuf, Option<u64>)>,
}

/// The earliest stage whose output was not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The rank that saw it; of several, the lowest.
    pub rank: usize,
    /// The name of the stage's first parameter.
    pub stage: String,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NonFinite { step, tag, value, origin, sequences, .. } = self;
        write!(f, "step {step}: `{tag}` is {value}, expected a finite number; ")?;
        if let Some(Origin { rank, stage }) = origin {
            write!(f, "first seen on rank {rank} after `{stage}`, ")?;
        }
        // As `annulus data show` counts them.
        match (sequences.start + 1, sequences.end) {
            (first, last) if first == last => write!(f, "sequence {first} of the batch"),
            (first, last) => write!(f, "sequences {first} to {last} of the batch"),
        }
    }
}

impl NonFinite {
    /// The way out: how to look at the sequences, and from where to go on.
    pub(crate) fn hint(&self) -> String {
        let step = self.step;
        let show = |run: &str| {
            format!(
                "look at the sequences named: `annulus data show {run} --step {step}` prints them"
            )
        };
        let Some((run, checkpoint)) = &self.run else {
            return format!("lower `optimizer.learning_rate`, or {}", show("EXPERIMENT"));
        };
        let show = show(&run.display().to_string());
        match checkpoint {
            None => format!("lower `optimizer.learning_rate`, or {show}"),
            Some(step) => format!(
                "{show}; to go on from a checkpoint before it, of which the last is `{0}`, with a lower `optimizer.learning_rate` or other \
                 data, fork the run: `output=… --from {0}`",
                checkpoint_folder(run, *step).display()
            ),
        }
    }
}

/// By micro-batch, the index of the first stage where this rank saw a value that is not finite.
pub(crate) type Sightings = Vec<Option<usize>>;

/// The earliest sighting of all ranks: (stage, micro-batch, rank), the same on every rank.
///
/// Called only after a sum over all ranks was not finite, so all ranks call it or none does.
pub(crate) fn earliest(
    comm: &dyn Communicator,
    label: Label,
    own: &Sightings,
) -> Result<Option<(usize, usize, usize)>> {
    let own: Vec<i64> = own.iter().map(|stage| stage.map_or(i64::MAX, |s| s as i64)).collect();
    let all =
        if comm.world_size() == 1 { vec![own] } else { all_gather_values(comm, label, &own)? };
    let sightings = all.iter().enumerate().flat_map(|(rank, stages)| {
        stages.iter().enumerate().map(move |(micro, &stage)| (stage, micro, rank))
    });
    Ok(sightings
        .filter(|&(stage, ..)| stage != i64::MAX)
        .min()
        .map(|(stage, micro, rank)| (stage as usize, micro, rank)))
}

/// An error if a value that the model computed is not finite; `what` names it.
pub(crate) fn finite(value: f64, what: impl FnOnce() -> String) -> Result<()> {
    if value.is_finite() { Ok(()) } else { Err(TrainError::NotANumber { what: what(), value }) }
}

/// An error if an element of a tensor is not finite, with the first such element; `what` names the tensor.
pub(crate) fn all_finite(tensor: &Tensor, what: impl FnOnce() -> String) -> Result<()> {
    let values: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let found = values.into_iter().find(|value| !value.is_finite());
    found.map_or(Ok(()), |value| finite(value.into(), what))
}

/// Whether every element is finite: otherwise their sum of squares is not.
pub(crate) fn is_finite(tensor: &Tensor) -> Result<bool> {
    let squares = tensor.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    Ok(squares.is_finite())
}
