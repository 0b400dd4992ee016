//! Parameters of one rank: what layers compute with, the f32 masters behind it, and AdamW's
//! moments.
//!
//! Every rank holds all of it, and the same bits: gradients are equal everywhere, and so is what
//! follows from them.

use std::collections::{BTreeMap, BTreeSet};

use annulus_experiment::Optimizer as Settings;
use annulus_memory::{Class, scope};
use annulus_model::{Config, Llama, Weights};
use annulus_ops::{AdamW, Backend, Moments, Parameter};
use candle_core::{DType, Device, Tensor, Var};

use crate::Result;

/// Weights as layers take them.
#[derive(Debug)]
pub(crate) struct Parameters {
    /// Those that are trained.
    variables: BTreeMap<String, Var>,
    /// All; of those that are trained the same storage, and operations on it record nothing.
    pub(crate) weights: Weights,
}

/// The names of what is trained of a model.
pub(crate) fn trained(config: &Config) -> BTreeSet<String> {
    let all = Llama::specification(config).into_iter();
    all.filter(|parameter| parameter.trained).map(|parameter| parameter.name).collect()
}

impl Parameters {
    /// This rank's own copy of `weights`, in `dtype` on `device`.
    pub(crate) fn new(
        weights: &Weights,
        trained: &BTreeSet<String>,
        dtype: DType,
        device: &Device,
    ) -> Result<Parameters> {
        let _weights = scope(Class::Weights);
        let mut variables = BTreeMap::new();
        let mut own = Weights::new();
        for (name, weight) in weights {
            let narrow = weight.to_dtype(dtype)?;
            if trained.contains(name) {
                let variable = Var::from_tensor(&narrow.to_device(device)?)?;
                own.insert(name.clone(), variable.as_detached_tensor());
                variables.insert(name.clone(), variable);
            } else {
                own.insert(name.clone(), own_copy(&narrow, device)?);
            }
        }
        Ok(Parameters { variables, weights: own })
    }

    /// The names of what is trained, in order.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str)
    }
}

/// What AdamW keeps between steps.
#[derive(Debug)]
pub(crate) struct Optimizer {
    settings: Settings,
    /// f32; where weights are f32, the weights themselves.
    pub(crate) masters: Weights,
    pub(crate) moments: BTreeMap<String, Moments>,
}

impl Optimizer {
    /// Fresh moments beside `parameters`; `masters` f32 are what the parameters were made from.
    pub(crate) fn new(
        settings: &Settings,
        parameters: &Parameters,
        masters: &Weights,
    ) -> Result<Optimizer> {
        let masters_of_narrow_weights = scope(Class::Weights);
        let mut own = Weights::new();
        for name in parameters.variables.keys() {
            let weight = &parameters.weights[name];
            let master = match weight.dtype() {
                DType::F32 => weight.clone(),
                _ => own_copy(&masters[name].to_dtype(DType::F32)?, weight.device())?,
            };
            own.insert(name.clone(), master);
        }
        drop(masters_of_narrow_weights);
        let _moments = scope(Class::Optimizer);
        let moments = own
            .iter()
            .map(|(name, master)| Ok((name.clone(), Moments::zeros(master)?)))
            .collect::<candle_core::Result<_>>()?;
        Ok(Optimizer { settings: settings.clone(), masters: own, moments })
    }

    /// This rank's own copy of moments that were saved, where its masters are.
    pub(crate) fn restore(&mut self, moments: &BTreeMap<String, Moments>) -> Result<()> {
        let _moments = scope(Class::Optimizer);
        for (name, Moments { first, second }) in moments {
            let device = self.masters[name].device();
            let own =
                Moments { first: own_copy(first, device)?, second: own_copy(second, device)? };
            self.moments.insert(name.clone(), own);
        }
        Ok(())
    }

    /// One step of every parameter, in name order. `gradients` are multiplied by `factor` on the
    /// way. Nothing in here waits or asks whether to stop: a step is applied whole or not at all.
    pub(crate) fn update(
        &self,
        backend: &Backend,
        parameters: &Parameters,
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
        let parameter = |(name, variable): (&String, _)| {
            let master = &self.masters[name];
            Parameter {
                master,
                gradient: &gradients[name],
                moments: &self.moments[name],
                copy: Some(variable).filter(|variable: &&Var| variable.dtype() != DType::F32),
                decays: master.rank() == 2,
            }
        };
        let all: Vec<_> = parameters.variables.iter().map(parameter).collect();
        Ok(adamw.update_all(backend, &all, update.factor)?)
    }
}

/// A copy on `device` that nobody else has.
fn own_copy(tensor: &Tensor, device: &Device) -> candle_core::Result<Tensor> {
    if tensor.device().same_device(device) { tensor.copy() } else { tensor.to_device(device) }
}

/// What differs from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    /// Steps taken, this one included.
    pub(crate) step: u64,
    pub(crate) learning_rate: f64,
    /// What gradients are multiplied by.
    pub(crate) factor: f64,
}
