//! What is written into a checkpoint.

use candle_core::{DType, Tensor};

use crate::Result;

/// A tensor that the optimizer keeps of a parameter, f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptimizerTensor {
    /// AdamW's first moment.
    First,
    /// AdamW's second moment.
    Second,
    /// The master of a weight that is not f32.
    Master,
}

impl OptimizerTensor {
    /// All of them.
    pub(crate) const ALL: [OptimizerTensor; 3] =
        [OptimizerTensor::First, OptimizerTensor::Second, OptimizerTensor::Master];

    /// Those of a trained weight of type `dtype`: an f32 weight is its own master.
    pub(crate) fn of(dtype: DType) -> impl Iterator<Item = OptimizerTensor> + Clone {
        let has =
            move |one: &OptimizerTensor| *one != OptimizerTensor::Master || dtype != DType::F32;
        OptimizerTensor::ALL.into_iter().filter(has)
    }

    /// The beginning of its name in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OptimizerTensor::First => "first",
            OptimizerTensor::Second => "second",
            OptimizerTensor::Master => "master",
        }
    }

    /// Its name in files, for the parameter `name`.
    pub(crate) fn key(self, name: &str) -> String {
        format!("{}.{name}", self.name())
    }

    /// Splits a name in files into the kind of tensor and the parameter's name; `None`: the optimizer keeps no such tensor.
    pub(crate) fn split(key: &str) -> Option<(OptimizerTensor, &str)> {
        let (kind, name) = key.split_once('.')?;
        let kind = OptimizerTensor::ALL.into_iter().find(|one| one.name() == kind)?;
        Some((kind, name))
    }
}

/// The share of a checkpoint that a rank writes, a tensor at a time.
pub(crate) trait Contents {
    /// The pieces of a weight that this rank writes.
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>>;
    /// The pieces that this rank writes of an optimizer's tensor, by its name in the checkpoint.
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Piece>>;
}

/// Some elements of a tensor, flat, and their places.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) elements: Tensor,
    /// The places of the elements in the whole tensor: runs of neighbours, each as (first, count).
    pub(crate) runs: Vec<(usize, usize)>,
}
