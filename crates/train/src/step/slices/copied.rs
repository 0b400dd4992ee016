//! A copy of a rank's share of a checkpoint, to be written while training goes on.

use std::collections::BTreeMap;

use annulus_memory::{Class, on_behalf_of};
use annulus_model::Described;
use annulus_ops::on_host;
use candle_core::{Device, Tensor};

use crate::Result;
use crate::checkpoint::{Contents, Piece};
use crate::step::slices::Slices;

/// A host copy of a rank's share of a checkpoint, which training does not change; each tensor's memory is freed once it is written.
#[derive(Debug)]
pub(crate) struct CopiedSlices {
    weights: Copies,
    optimizer: Copies,
}

/// Copied pieces by tensor name.
type Copies = BTreeMap<String, Vec<Piece>>;

impl CopiedSlices {
    /// Copies everything that this rank writes of `slices`; the memory counts to rank `owner`.
    pub(crate) fn of(mut slices: Slices<'_>, owner: usize) -> Result<CopiedSlices> {
        let (weights, optimizer) = (slices.weights(), slices.optimizer());
        let of_weights = |name: &str| slices.of_weight(name);
        let weights = copies(weights, of_weights, owner, Class::Weights)?;
        let of_optimizer = |name: &str| slices.of_optimizer(name);
        let optimizer = copies(optimizer, of_optimizer, owner, Class::Optimizer)?;
        Ok(CopiedSlices { weights, optimizer })
    }
}

fn copies(
    described: Vec<Described>,
    mut read: impl FnMut(&str) -> Result<Vec<Piece>>,
    owner: usize,
    class: Class,
) -> Result<Copies> {
    let copied = |Piece { elements, runs }| Ok(Piece { elements: copy(&elements)?, runs });
    let one = |Described { name, .. }| {
        let own = read(&name)?.into_iter();
        let own = on_behalf_of(owner, class, || own.map(copied).collect::<Result<_>>())?;
        Ok((name, own))
    };
    described.into_iter().map(one).collect()
}

/// A copy of a tensor on the host, with storage of its own.
fn copy(tensor: &Tensor) -> candle_core::Result<Tensor> {
    match tensor.device() {
        Device::Cpu => tensor.force_contiguous(),
        _ => on_host(tensor),
    }
}

impl Contents for CopiedSlices {
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>> {
        Ok(self.weights.remove(name).unwrap_or_default())
    }
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Piece>> {
        Ok(self.optimizer.remove(name).unwrap_or_default())
    }
}
