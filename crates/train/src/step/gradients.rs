//! Gradients of one rank, then of all: f32, by name.

use std::collections::BTreeMap;

use annulus_comm::{Axis, Label, Mesh, Reduce};
use annulus_memory::{Class, scope};
use annulus_model::Weights;
use annulus_ops::{Backend, accumulate, charge, check_gradients, global_norm_squared};
use annulus_trace::{Doing, begin};
use candle_core::Tensor;

use crate::{Result, TrainError};

/// What travels under this pass is counted as gradient bytes.
pub(crate) const PASS: &str = "gradient sum";

/// Bytes of an element.
const F32: usize = 4;

/// Gradients of a sum of losses, accumulated over what this rank has seen.
#[derive(Debug, Default)]
pub(crate) struct Gradients(Weights);

impl Gradients {
    /// Adds one, f32; in place where there is one already.
    pub(crate) fn add(
        &mut self,
        backend: &Backend,
        name: &str,
        gradient: Tensor,
    ) -> candle_core::Result<()> {
        if let Some(sum) = self.0.get(name) {
            accumulate(backend, sum, &gradient)?;
        } else {
            charge([&gradient], Class::Gradients);
            self.0.insert(name.to_owned(), gradient);
        }
        Ok(())
    }

    /// Checks that every parameter that is `trained` got a gradient: a stage that forgot one would train without it, in
    /// silence.
    pub(crate) fn check<'a>(&self, trained: impl Iterator<Item = &'a str>) -> Result<()> {
        check_gradients(trained, |name| self.0.contains_key(name))
            .map_err(|missing| TrainError::Internal(missing.to_string()))
    }

    /// The sum over data and sequence, the same bits on every rank: four bytes an element to the
    /// communicator, none on one rank.
    pub(crate) fn sum(self, mesh: &Mesh, step: u64) -> Result<Weights> {
        let group = mesh.group(&[Axis::Data, Axis::Sequence]);
        if group.world() == 1 {
            return Ok(self.0);
        }
        let _gradients = scope(Class::Gradients);
        let mut sums = BTreeMap::new();
        for (hop, (name, gradient)) in self.0.into_iter().enumerate() {
            let label = Label { step, pass: PASS, hop, layer: 0 };
            let (summing, bytes) = (begin(), (F32 * gradient.elem_count()) as u64);
            let sum = group.all_reduce(label, &gradient, Reduce::Sum)?;
            summing.end(|| Doing::Sum { name: name.clone(), bytes });
            sums.insert(name, sum);
        }
        Ok(sums)
    }
}

/// The norm over all gradients, in name order.
pub(crate) fn norm(backend: &Backend, gradients: &Weights) -> Result<f64> {
    Ok(global_norm_squared(backend, gradients.values())?.sqrt())
}
