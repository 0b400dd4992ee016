//! A copy of what a checkpoint is made of, to be written while training goes on.

use std::collections::BTreeMap;

use annulus_memory::{Class, on_behalf_of};
use annulus_model::Described;
use candle_core::{Device, Tensor};

use super::{Contents, Slices};
use crate::{Result, TrainError};

/// Everything, on the host, as it was when it was copied: nobody else has it. What is written is given back at once.
#[derive(Debug)]
pub(crate) struct Copied {
    weights: Copies,
    optimizer: Copies,
}

#[derive(Debug)]
struct Copies {
    described: Vec<Described>,
    slices: BTreeMap<String, Vec<Tensor>>,
}

impl Copied {
    /// Of all that `slices` has, counted to rank `owner`.
    pub(crate) fn of(mut slices: Slices<'_>, owner: usize) -> Result<Copied> {
        let (weights, optimizer) = (slices.weights(), slices.optimizer());
        let of_weights = |name: &str| slices.of_weight(name);
        let weights = Copies::of(weights, of_weights, (owner, Class::Weights))?;
        let of_optimizer = |name: &str| slices.of_optimizer(name);
        let optimizer = Copies::of(optimizer, of_optimizer, (owner, Class::Optimizer))?;
        Ok(Copied { weights, optimizer })
    }
}

impl Copies {
    fn of(
        described: Vec<Described>,
        mut read: impl FnMut(&str) -> Result<Vec<Tensor>>,
        (owner, class): (usize, Class),
    ) -> Result<Copies> {
        let mut slices = BTreeMap::new();
        for one in &described {
            let own = read(&one.name)?;
            let own = on_behalf_of(owner, class, || {
                own.iter().map(copy).collect::<candle_core::Result<_>>()
            })?;
            slices.insert(one.name.clone(), own);
        }
        Ok(Copies { described, slices })
    }

    fn take(&mut self, name: &str) -> Result<Vec<Tensor>> {
        self.slices
            .remove(name)
            .ok_or_else(|| TrainError::Internal(format!("there is no copy of `{name}`")))
    }
}

/// On the host; of what is there already another one.
fn copy(tensor: &Tensor) -> candle_core::Result<Tensor> {
    match tensor.device() {
        Device::Cpu => tensor.force_contiguous(),
        _ => tensor.to_device(&Device::Cpu),
    }
}

impl Contents for Copied {
    fn weights(&self) -> Vec<Described> {
        self.weights.described.clone()
    }
    fn optimizer(&self) -> Vec<Described> {
        self.optimizer.described.clone()
    }
    fn of_weight(&mut self, name: &str) -> Result<Vec<Tensor>> {
        self.weights.take(name)
    }
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Tensor>> {
        self.optimizer.take(name)
    }
}
