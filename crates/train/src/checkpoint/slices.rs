//! What a rank writes of a checkpoint.

use annulus_model::{Described, Placement};
use annulus_ops::Moments;
use annulus_plan::slice;
use candle_core::{DType, Tensor};

use crate::step::division::Division;
use crate::step::optimizer::Optimizer;
use crate::step::parameters::RankParameters;
use crate::{Result, TrainError};

/// What a rank writes of a checkpoint, a tensor at a time.
pub(crate) trait Contents {
    /// A weight's elements.
    fn of_weight(&mut self, name: &str) -> Result<Vec<Piece>>;
    /// Those of what the optimizer keeps under a name.
    fn of_optimizer(&mut self, name: &str) -> Result<Vec<Piece>>;
}

/// Elements of a tensor, flat.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) elements: Tensor,
    /// Where they lie in the whole tensor: runs of neighbours, each by its first and how many they are.
    pub(crate) runs: Vec<(usize, usize)>,
}

/// What a rank has of the weights and of what the optimizer keeps, and which of it is its to write: where processes hold shares each
/// rank its own, else rank 0 all.
#[derive(Debug)]
pub(crate) struct Slices<'a> {
    pub(crate) stake: &'a RankParameters,
    pub(crate) division: &'a Division,
    /// Whether weights are those of adapters alone.
    pub(crate) only_trained: bool,
}

impl Slices<'_> {
    /// Whether no rank has them all.
    pub(crate) fn are_shared(&self) -> bool {
        self.division.shards_optimizer() || self.division.tensor.world() > 1
    }

    /// The weights that are written, by any rank, in the order of their names.
    pub(crate) fn weights(&self) -> Vec<Described> {
        let parameters = &self.stake.parameters;
        let is_there = |name: &String| !self.only_trained || parameters.trained.contains(name);
        let names = parameters.shapes.keys().filter(|name| is_there(name));
        names.map(|name| self.described(name.clone(), name, parameters.dtype)).collect()
    }

    /// What is written of what the optimizer keeps, in the order of its names: moments, and masters where weights are narrower.
    pub(crate) fn optimizer(&self) -> Vec<Described> {
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

    /// A parameter whole, under another name and as elements of another type.
    pub(crate) fn described(&self, called: String, name: &str, dtype: DType) -> Described {
        let shape = self.stake.parameters.placed[name].0.clone();
        Described { name: called, shape, dtype }
    }

    /// How many elements a parameter has, of the part that this rank has.
    fn elements(&self, name: &str) -> usize {
        self.stake.parameters.shapes[name].elem_count()
    }

    /// Whether another rank writes the same elements of a parameter: of what tensor-parallel ranks have whole the first does.
    fn is_another_s(&self, name: &str) -> bool {
        let is_whole = self.stake.parameters.placed[name].1 == Placement::Replicated;
        is_whole && !self.division.counts_whole()
    }

    /// Of what this rank has of a parameter's part, from element `begins` on, what it writes: what it sums of gradients, so that all
    /// write, and no two the same.
    fn own_piece(&self, name: &str, (begins, has): (usize, &Tensor)) -> Result<Vec<Piece>> {
        let range = self.division.own_sums(self.elements(name));
        if range.is_empty() || self.is_another_s(name) {
            return Ok(Vec::new());
        }
        let own = has.flatten_all()?.narrow(0, range.start - begins, range.len())?;
        Ok(vec![self.piece(name, (range.start, own))])
    }

    /// Elements of a parameter's part, from number `begins` on.
    fn piece(&self, name: &str, (begins, elements): (usize, Tensor)) -> Piece {
        let parameters = &self.stake.parameters;
        let (whole, placement) = &parameters.placed[name];
        let range = begins..begins + elements.elem_count();
        Piece { elements, runs: placement.runs(whole, parameters.part, range) }
    }

    /// What an optimizer has of a parameter.
    fn kept(which: &str, name: &str, own: &Optimizer) -> Result<Option<Tensor>> {
        Ok(match which {
            "master" => own.master(name).cloned(),
            "first" => own.moments(name)?.map(|Moments { first, .. }| first),
            _ => own.moments(name)?.map(|Moments { second, .. }| second),
        })
    }

    /// A weight that this process has whole.
    pub(crate) fn whole(&self, name: &str) -> Result<Vec<Piece>> {
        let weight =
            self.stake.parameters.weights.get(name).map(Tensor::flatten_all).transpose()?;
        Ok(weight.map(|all| self.piece(name, (0, all))).into_iter().collect())
    }

    /// Of all ranks of this process, what their optimizers have.
    fn of_all(&self, which: &str, name: &str) -> Result<Vec<Piece>> {
        let (optimizers, elements) = (self.stake.optimizers(), self.elements(name));
        let mut pieces = Vec::new();
        for (rank, one) in optimizers.iter().enumerate() {
            let own = Slices::kept(which, name, one)?;
            let begins = slice(elements, rank, optimizers.len()).start;
            pieces.extend(own.map(|own| self.piece(name, (begins, own))));
        }
        Ok(pieces)
    }

    /// Elements of a weight that no other rank has in its part of [`Slices::own_weight`]: of all ranks, each once.
    pub(crate) fn own_weight(&self, name: &str) -> Result<Vec<Piece>> {
        if let Some(part) = self.stake.parameters.weights.get(name) {
            return self.own_piece(name, (0, part));
        }
        let begins = self.division.updated(self.elements(name)).start;
        let own = self.stake.optimizer().and_then(|own| own.share(name));
        own.map_or_else(|| Ok(Vec::new()), |own| self.own_piece(name, (begins, own)))
    }

    /// The same of what the optimizer keeps under a name.
    pub(crate) fn own_kept(&self, called: &str) -> Result<Vec<Piece>> {
        let (which, name) = parts(called)?;
        let begins = self.division.updated(self.elements(name)).start;
        let own = self.stake.optimizer().map(|own| Slices::kept(which, name, own)).transpose()?;
        own.flatten().map_or_else(|| Ok(Vec::new()), |own| self.own_piece(name, (begins, &own)))
    }

    /// The same of a gradient, of which `slice` is what this rank updates.
    pub(crate) fn own_gradient(&self, name: &str, slice: &Tensor) -> Result<Vec<Piece>> {
        let begins = self.division.updated(self.elements(name)).start;
        self.own_piece(name, (begins, slice))
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

/// What an optimizer keeps under a name, and of which parameter.
fn parts(called: &str) -> Result<(&str, &str)> {
    let parts = called.split_once('.');
    parts.ok_or_else(|| TrainError::Internal(format!("no optimizer keeps `{called}`")))
}
