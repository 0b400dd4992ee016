//! Parameters of one rank: what layers compute with, the f32 masters behind it, and AdamW's
//! moments.
//!
//! Every rank holds all of it, and the same bits: gradients are equal everywhere, and so is what
//! follows from them.

use std::collections::BTreeMap;

use annulus_experiment::Optimizer as Settings;
use annulus_memory::{Class, scope};
use annulus_model::Weights;
use annulus_ops::{AdamW, Moments, Pool};
use candle_core::{DType, Var};

use crate::Result;

/// Weights as layers take them.
#[derive(Debug)]
pub(crate) struct Parameters {
    variables: BTreeMap<String, Var>,
    /// The same storage; operations on it record nothing.
    pub(crate) weights: Weights,
}

impl Parameters {
    /// This rank's own copy of `weights`, in `dtype`.
    pub(crate) fn new(weights: &Weights, dtype: DType) -> Result<Parameters> {
        let _weights = scope(Class::Weights);
        let mut variables = BTreeMap::new();
        for (name, weight) in weights {
            variables.insert(name.clone(), Var::from_tensor(&weight.to_dtype(dtype)?)?);
        }
        let weights = variables.iter().map(|(name, own)| (name.clone(), own.as_detached_tensor()));
        let weights = weights.collect();
        Ok(Parameters { variables, weights })
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
        for (name, weight) in &parameters.weights {
            let master = match weight.dtype() {
                DType::F32 => weight.clone(),
                _ => masters[name].to_dtype(DType::F32)?.copy()?,
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

    /// This rank's own copy of moments that were saved.
    pub(crate) fn restore(&mut self, moments: &BTreeMap<String, Moments>) -> Result<()> {
        let _moments = scope(Class::Optimizer);
        for (name, moments) in moments {
            let own = Moments { first: moments.first.copy()?, second: moments.second.copy()? };
            self.moments.insert(name.clone(), own);
        }
        Ok(())
    }

    /// One step of every parameter, in name order. `gradients` are multiplied by `factor` on the
    /// way. Nothing in here waits or asks whether to stop: a step is applied whole or not at all.
    pub(crate) fn update(
        &self,
        pool: &Pool,
        parameters: &Parameters,
        gradients: &Weights,
        update: Update,
    ) -> Result<()> {
        for (name, variable) in &parameters.variables {
            let master = &self.masters[name];
            let matrix = master.rank() == 2;
            let adamw = AdamW {
                learning_rate: update.learning_rate,
                betas: self.settings.betas,
                epsilon: self.settings.epsilon,
                weight_decay: if matrix { self.settings.weight_decay } else { 0.0 },
                step: update.step,
            };
            let moments = &self.moments[name];
            adamw.update(pool, master, &gradients[name], update.factor, moments)?;
            if variable.dtype() != DType::F32 {
                variable.set(&master.to_dtype(variable.dtype())?)?;
            }
        }
        Ok(())
    }
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
