//! The tensors of a checkpoint, one at a time: of slices that ranks have of them, of this process or of all.

use annulus_comm::Label;
use annulus_model::{Described, Placement};
use annulus_ops::Moments;
use candle_core::{DType, Tensor};

use crate::step::division::Division;
use crate::step::parameters::{Optimizer, Stake};
use crate::{Result, TrainError};

/// What a checkpoint is written of.
pub(crate) trait Contents {
    /// The weights, in the order of their names.
    fn weights(&self) -> Vec<Described>;
    /// What the optimizer keeps, in the order of its names.
    fn optimizer(&self) -> Vec<Described>;
    /// A weight's elements, in slices.
    fn of_weight(&mut self, name: &str) -> Result<Vec<Tensor>>;
    /// Those of what the optimizer keeps under a name.
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Tensor>>;
}

/// What ranks have of it. Where they hold shares, all ranks hand over theirs in the order in which rank 0 writes.
#[derive(Debug)]
pub(crate) struct Slices<'a> {
    pub(crate) stake: &'a Stake,
    pub(crate) division: &'a Division,
    /// The step that is saved.
    pub(crate) step: u64,
    /// Whether weights are those of adapters alone.
    pub(crate) only_trained: bool,
    /// How many calls there were.
    hops: usize,
}

impl<'a> Slices<'a> {
    pub(crate) fn new(
        stake: &'a Stake,
        division: &'a Division,
        step: u64,
        only_trained: bool,
    ) -> Slices<'a> {
        Slices { stake, division, step, only_trained, hops: 0 }
    }

    /// Whether no rank has them all: others are to hand over theirs.
    pub(crate) fn are_shared(&self) -> bool {
        self.division.shares_optimizer() || self.division.tensor.world() > 1
    }

    fn described(&self, called: String, name: &str, dtype: DType) -> Described {
        let parameters = &self.stake.parameters;
        let shape = parameters.placed[name].0.clone();
        Described { name: called, shape, dtype }
    }

    /// A parameter of the slices of its parts, each of which the first rank that has it has; of tensor-parallel ranks the first gets
    /// all parts.
    fn joined(&mut self, name: &str, of_part: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let (division, parameters) = (self.division, &self.stake.parameters);
        if division.tensor.world() == 1 {
            return Ok(of_part);
        }
        // Of every rank the same.
        let label = self.label("checkpoint, parts");
        if division.all.rank() > 0 {
            return Ok(Vec::new());
        }
        let Placement::Sharded(dim) = parameters.placed[name].1 else {
            return Ok(if division.counts_whole() { of_part } else { Vec::new() });
        };
        let of_part: Vec<Tensor> =
            of_part.iter().map(Tensor::flatten_all).collect::<candle_core::Result<_>>()?;
        let own = Tensor::cat(&of_part, 0)?.reshape(&parameters.shapes[name])?;
        let Some(parts) = division.tensor.gather(label, &own, 0)? else { return Ok(Vec::new()) };
        Ok(vec![Tensor::cat(&parts, dim)?])
    }

    /// Of the next call.
    fn label(&mut self, pass: &'static str) -> Label {
        self.hops += 1;
        Label { step: self.step, pass, hop: self.hops - 1, layer: 0 }
    }

    fn collected(
        &mut self,
        pass: &'static str,
        name: &str,
        (dtype, own): (DType, Option<Tensor>),
    ) -> Result<Vec<Tensor>> {
        let elements = self.stake.parameters.shapes[name].elem_count();
        let label = self.label(pass);
        let all = self.division.collected(label, (elements, dtype), own.as_ref())?;
        Ok(all.unwrap_or_default())
    }

    /// Hands over what this rank has to the rank that writes.
    pub(crate) fn hand_over(mut self) -> Result<()> {
        for one in self.weights() {
            self.of_weight(&one.name)?;
        }
        for one in self.optimizer() {
            self.of_optimizer(&one.name)?;
        }
        Ok(())
    }
}

impl Contents for Slices<'_> {
    /// The weights, in the order of their names.
    fn weights(&self) -> Vec<Described> {
        let parameters = &self.stake.parameters;
        let is_there = |name: &String| !self.only_trained || parameters.trained.contains(name);
        let names = parameters.shapes.keys().filter(|name| is_there(name));
        names.map(|name| self.described(name.clone(), name, parameters.dtype)).collect()
    }

    /// What the optimizer keeps, in the order of its names: moments, and masters where weights are narrower.
    fn optimizer(&self) -> Vec<Described> {
        let parameters = &self.stake.parameters;
        let mut kept = vec!["first", "second"];
        kept.extend((parameters.dtype != DType::F32).then_some("master"));
        kept.sort_unstable();
        let of = |which| {
            let one = move |name| self.described(format!("{which}.{name}"), name, DType::F32);
            parameters.trained().map(one)
        };
        kept.into_iter().flat_map(of).collect()
    }

    /// A weight's slices; on other ranks than the one that writes, nothing.
    fn of_weight(&mut self, name: &str) -> Result<Vec<Tensor>> {
        let parameters = &self.stake.parameters;
        let of_part = if let Some(part) = parameters.weights.get(name) {
            vec![part.clone()]
        } else {
            let own = self.stake.optimizer().and_then(|own| own.share(name)).cloned();
            self.collected("checkpoint, weights", name, (parameters.dtype, own))?
        };
        self.joined(name, of_part)
    }

    /// The slices of what the optimizer keeps under a name.
    fn of_optimizer(&mut self, called: &str) -> Result<Vec<Tensor>> {
        let Some((which, name)) = called.split_once('.') else {
            return Err(TrainError::Internal(format!("no optimizer keeps `{called}`")));
        };
        let of = |one: &Optimizer| -> Result<Option<Tensor>> {
            Ok(match which {
                "master" => one.master(name).cloned(),
                "first" => one.moments(name)?.map(|Moments { first, .. }| first),
                _ => one.moments(name)?.map(|Moments { second, .. }| second),
            })
        };
        let of_part = if self.division.shares_optimizer() {
            let own = self.stake.optimizer().map(of).transpose()?.flatten();
            self.collected("checkpoint, optimizer", name, (DType::F32, own))?
        } else {
            let all = self.stake.optimizers().into_iter();
            all.filter_map(|one| of(one).transpose()).collect::<Result<_>>()?
        };
        self.joined(name, of_part)
    }
}
