//! The share of a checkpoint that a rank writes.

pub(crate) mod copied;
pub(crate) mod gathered;

use crate::checkpoint::{Contents, OptimizerTensor, Piece};
use annulus_model::{Described, Placement};
use annulus_ops::Moments;
use annulus_plan::slice_range;
use candle_core::{DType, Tensor};

use crate::step::state::division::Division;
use crate::step::state::optimizer::Optimizer;
use crate::step::state::parameters::RankParameters;
use crate::{Result, TrainError};

/// A rank's weights and optimizer state, and which of it the rank writes: where processes hold shards, each rank its own; otherwise rank 0
/// writes everything.
#[derive(Debug)]
pub(crate) struct Slices<'a> {
    pub(crate) state: &'a RankParameters,
    pub(crate) division: &'a Division,
    /// Whether only the trained weights, those of adapters, are written.
    pub(crate) only_trained: bool,
}

impl Slices<'_> {
    /// Whether no rank has all slices: every rank then writes its own.
    pub(crate) fn are_shared(&self) -> bool {
        self.division.shards_optimizer() || self.division.tensor.world_size() > 1
    }

    /// The weights that are written, by any rank, in the order of their names.
    pub(crate) fn weights(&self) -> Vec<Described> {
        let parameters = &self.state.parameters;
        let is_there = |name: &String| !self.only_trained || parameters.trained.contains(name);
        let names = parameters.shapes.keys().filter(|name| is_there(name));
        names.map(|name| self.described(name.clone(), name, parameters.dtype)).collect()
    }

    /// The optimizer's tensors that are written, in the order of their names: moments, and masters where weights are not f32.
    pub(crate) fn optimizer(&self) -> Vec<Described> {
        let parameters = &self.state.parameters;
        let mut kept: Vec<OptimizerTensor> = OptimizerTensor::of(parameters.dtype).collect();
        kept.sort_unstable_by_key(|which| which.name());
        let of = |which: OptimizerTensor| {
            let one = move |name: &str| self.described(which.key(name), name, DType::F32);
            parameters.trained().map(one)
        };
        kept.into_iter().flat_map(of).collect()
    }

    /// Describes a parameter, whole, as written under the name `called` with another dtype.
    pub(crate) fn described(&self, called: String, name: &str, dtype: DType) -> Described {
        let shape = self.state.parameters.placed[name].0.clone();
        Described { name: called, shape, dtype }
    }

    /// How many elements this rank's part of a parameter has.
    fn elements(&self, name: &str) -> usize {
        self.state.parameters.shapes[name].elem_count()
    }

    /// Whether another rank writes the same elements: of a parameter that all tensor-parallel ranks have whole, the first writes.
    fn is_another_s(&self, name: &str) -> bool {
        let is_whole = self.state.parameters.placed[name].1 == Placement::Replicated;
        is_whole && !self.division.counts_whole()
    }

    /// The piece that this rank writes of a parameter, of which it has elements from `begins` on. It is what the rank sums of the gradient:
    /// so all ranks write, and no two the same.
    fn own_piece(&self, name: &str, begins: usize, has: &Tensor) -> Result<Vec<Piece>> {
        let range = self.division.own_sums(self.elements(name));
        if range.is_empty() || self.is_another_s(name) {
            return Ok(Vec::new());
        }
        let own = has.flatten_all()?.narrow(0, range.start - begins, range.len())?;
        Ok(vec![self.piece(name, range.start, own)])
    }

    /// The piece of a parameter's part that begins with element number `begins`.
    fn piece(&self, name: &str, begins: usize, elements: Tensor) -> Piece {
        let parameters = &self.state.parameters;
        let (whole, placement) = &parameters.placed[name];
        let range = begins..begins + elements.elem_count();
        Piece { elements, runs: placement.runs(whole, parameters.part, range) }
    }

    /// A parameter's tensor of the kind `which` in an optimizer, if it has one.
    fn kept(which: OptimizerTensor, name: &str, own: &Optimizer) -> Result<Option<Tensor>> {
        Ok(match which {
            OptimizerTensor::Master => own.master(name).cloned(),
            OptimizerTensor::First => own.moments(name)?.map(|Moments { first, .. }| first),
            OptimizerTensor::Second => own.moments(name)?.map(|Moments { second, .. }| second),
        })
    }

    /// A weight that this process has whole, as pieces.
    pub(crate) fn whole(&self, name: &str) -> Result<Vec<Piece>> {
        let weight =
            self.state.parameters.weights.get(name).map(Tensor::flatten_all).transpose()?;
        Ok(weight.map(|all| self.piece(name, 0, all)).into_iter().collect())
    }

    /// A parameter's tensor of the kind `which`, from the optimizers of all ranks of this process.
    fn of_all(&self, which: OptimizerTensor, name: &str) -> Result<Vec<Piece>> {
        let (optimizers, elements) = (self.state.optimizers(), self.elements(name));
        let mut pieces = Vec::new();
        for (rank, one) in optimizers.iter().enumerate() {
            let own = Slices::kept(which, name, one)?;
            let begins = slice_range(elements, rank, optimizers.len()).start;
            pieces.extend(own.map(|own| self.piece(name, begins, own)));
        }
        Ok(pieces)
    }

    /// The elements of a weight that this rank writes: over all ranks, each element once.
    pub(crate) fn own_weight(&self, name: &str) -> Result<Vec<Piece>> {
        if let Some(part) = self.state.parameters.weights.get(name) {
            return self.own_piece(name, 0, part);
        }
        let begins = self.division.updated(self.elements(name)).start;
        let own = self.state.optimizer().and_then(|own| own.share(name));
        own.map_or_else(|| Ok(Vec::new()), |own| self.own_piece(name, begins, own))
    }

    /// The elements that this rank writes of an optimizer's tensor, by its name in the checkpoint: over all ranks, each element once.
    pub(crate) fn own_kept(&self, called: &str) -> Result<Vec<Piece>> {
        let (which, name) = parts(called)?;
        let begins = self.division.updated(self.elements(name)).start;
        let own = self.state.optimizer().map(|own| Slices::kept(which, name, own)).transpose()?;
        own.flatten().map_or_else(|| Ok(Vec::new()), |own| self.own_piece(name, begins, &own))
    }

    /// The elements of a gradient that count for this rank, which updates `slice`: over all ranks, each element once.
    pub(crate) fn own_gradient(&self, name: &str, slice: &Tensor) -> Result<Vec<Piece>> {
        let begins = self.division.updated(self.elements(name)).start;
        self.own_piece(name, begins, slice)
    }
}

impl Contents for Slices<'_> {
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>> {
        if self.are_shared() { self.own_weight(name) } else { self.whole(name) }
    }

    fn of_optimizer(&mut self, called: &str) -> Result<Vec<Piece>> {
        if self.are_shared() {
            return self.own_kept(called);
        }
        let (which, name) = parts(called)?;
        self.of_all(which, name)
    }
}

/// Splits the name of an optimizer's tensor into its kind and the parameter's name.
fn parts(called: &str) -> Result<(OptimizerTensor, &str)> {
    let parts = OptimizerTensor::split(called);
    parts.ok_or_else(|| TrainError::Internal(format!("no optimizer keeps `{called}`")))
}
