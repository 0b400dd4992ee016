//! What a rank keeps for the slices that it updates: f32 masters, where weights are not f32, and AdamW's moments.

use std::collections::BTreeSet;

use annulus_experiment::Optimizer as Settings;
use annulus_memory::{Class, scope};
use annulus_model::{Runs, Weights};
use annulus_ops::{AdamW, Backend, Moments, Parameter};
use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{Kept, OptimizerTensor};
use crate::setup::start::Start;
use crate::step::state::division::Division;
use crate::step::state::moments::{Held, OffloadedMoments};
use crate::step::state::parameters::{Parameters, own_copy};
use crate::{Result, TrainError};

/// The slices that a rank updates, flat: f32 masters, AdamW's moments and, of narrower weights, the weights; where a process holds a shard
/// of the weights also its slices of the frozen ones. Parameters of which the rank has no elements are absent.
#[derive(Debug)]
pub(crate) struct Optimizer {
    settings: Settings,
    /// The f32 masters; where weights are f32, the weights themselves.
    masters: Weights,
    /// The weights as they are computed with, where they are not f32.
    copies: Weights,
    /// The slices of untrained weights, where a process holds a shard of the weights.
    frozen: Weights,
    moments: Held,
    /// The names of parameters with weight decay.
    decay: BTreeSet<String>,
    /// The names of the parameters in order, and the index at which this rank begins: ranks that share weights do not wait for each other.
    names: Vec<String>,
    begins: usize,
}

impl Optimizer {
    /// An optimizer without parameters.
    fn empty(settings: &Settings, offloaded: Option<OffloadedMoments>) -> Optimizer {
        Optimizer {
            settings: settings.clone(),
            masters: Weights::new(),
            copies: Weights::new(),
            frozen: Weights::new(),
            moments: Held::new(offloaded),
            decay: BTreeSet::new(),
            names: Vec::new(),
            begins: 0,
        }
    }

    /// The slices of `parameters` that this rank of `division` updates, as a run starts from them.
    pub(crate) fn new(
        settings: &Settings,
        offloaded: Option<OffloadedMoments>,
        parameters: &Parameters,
        start: &Start,
        division: &Division,
    ) -> Result<Optimizer> {
        let mut own = Optimizer::empty(settings, offloaded);
        let is_held =
            |name: &String| division.shards_weights() || parameters.trained.contains(name);
        for (name, shape) in parameters.shapes.iter().filter(|(name, _)| is_held(name)) {
            let range = division.updated(shape.elem_count());
            if range.is_empty() {
                continue;
            }
            let runs = parameters.runs(name, range.clone());
            let share = if let Some(whole) = parameters.weights.get(name) {
                whole.flatten_all()?.narrow(0, range.start, range.len())?
            } else {
                let saved = start.weights.elements(name, &runs)?;
                let _weights = scope(Class::Weights);
                own_copy(&saved.to_dtype(parameters.dtype)?, &parameters.device)?
            };
            if !parameters.trained.contains(name) {
                own.frozen.insert(name.clone(), share);
                continue;
            }
            if shape.rank() == 2 {
                own.decay.insert(name.clone());
            }
            let saved = start.moments.as_deref();
            let moments = begun(saved, name, &runs, range.len(), &parameters.device)?;
            own.moments.insert(name, moments)?;
            own.add(name, share, || start.weights.elements(name, &runs))?;
        }
        let (rank, ranks) = division.own();
        Ok(Optimizer { begins: own.names.len() * rank / ranks, ..own })
    }

    /// Adds a slice of a weight, as it is computed with and as it was `saved`.
    fn add(
        &mut self,
        name: &str,
        share: Tensor,
        saved: impl FnOnce() -> Result<Tensor>,
    ) -> Result<()> {
        let name = name.to_owned();
        let master = if share.dtype() == DType::F32 {
            share
        } else {
            let saved = saved()?.to_dtype(DType::F32)?;
            let _masters = scope(Class::Weights);
            let master = own_copy(&saved, share.device())?;
            self.copies.insert(name.clone(), share);
            master
        };
        self.masters.insert(name.clone(), master);
        self.names.push(name);
        Ok(())
    }

    /// This rank's slice of a parameter, in the weights' dtype.
    pub(crate) fn share(&self, name: &str) -> Option<&Tensor> {
        let trained = self.copies.get(name).or_else(|| self.masters.get(name));
        trained.or_else(|| self.frozen.get(name))
    }

    /// This rank's slice of a parameter's f32 master, where weights are not f32.
    pub(crate) fn master(&self, name: &str) -> Option<&Tensor> {
        self.copies.get(name).and_then(|_| self.masters.get(name))
    }

    /// A copy of the moments of this rank's slice of a parameter.
    pub(crate) fn moments(&self, name: &str) -> Result<Option<Moments>> {
        self.moments.of(name)
    }

    /// One AdamW step of the slices of every parameter, with `gradients` multiplied by `factor`. It neither waits for a rank nor asks
    /// whether to stop: a step is applied whole or not at all.
    pub(crate) fn update(
        &self,
        backend: &Backend,
        gradients: &Weights,
        update: Update,
    ) -> Result<()> {
        let adamw = AdamW {
            learning_rate: update.learning_rate,
            betas: self.settings.betas,
            epsilon: self.settings.epsilon,
            weight_decay: self.settings.weight_decay,
            step: update.step,
        };
        let begins = match backend {
            Backend::Cpu(_) => self.begins,
            // On a GPU one launch locks all slices, so every rank takes them in the same order.
            Backend::Gpu(_) => 0,
        };
        let (behind, first) = self.names.split_at(begins);
        let names: Vec<&String> = first.iter().chain(behind).collect();
        self.moments.update(&names, &|some: &[(&String, &Moments)]| {
            let parameter = |&(name, moments)| Parameter {
                master: &self.masters[name],
                gradient: &gradients[name],
                moments,
                copy: self.copies.get(name),
                decays: self.decay.contains(name),
            };
            let some: Vec<Parameter<'_>> = some.iter().map(parameter).collect();
            Ok(adamw.update_all(backend, &some, update.factor)?)
        })
    }
}

/// The moments of a slice of a weight: the saved ones, or zeros.
fn begun(
    saved: Option<&Kept>,
    name: &str,
    runs: &Runs,
    elements: usize,
    device: &Device,
) -> Result<Moments> {
    let one = |which| {
        let read = saved.map(|saved| saved.elements(which, name, runs)).transpose()?;
        let _moments = scope(Class::Optimizer);
        Ok::<_, TrainError>(match read {
            Some(read) => own_copy(&read, device)?,
            None => Tensor::zeros(elements, DType::F32, device)?,
        })
    };
    Ok(Moments { first: one(OptimizerTensor::First)?, second: one(OptimizerTensor::Second)? })
}

/// The arguments of an update that differ from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    /// Steps taken, this one included.
    pub(crate) step: u64,
    pub(crate) learning_rate: f64,
    /// The factor that gradients are multiplied by.
    pub(crate) factor: f64,
}
