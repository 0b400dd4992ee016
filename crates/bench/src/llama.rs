//! The small Llama whose training step is measured, and what another program needs to take the same
//! step: `config.json`, `model.safetensors`, `tokens.safetensors`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_data::{DataError, Sequence, Source};
use annulus_experiment::{Dtype, Plan, parse, write_config};
use annulus_model::{Llama, Weights, save, save_file};
use annulus_ops::{IGNORED, Key, uniform};
use annulus_train::{Setup, Stepped, Stepper};
use anyhow::{Context, Result, anyhow};
use candle_core::{Device, Tensor};

use crate::crew::{Crew, Work};

/// The seed of weights and tokens.
const SEED: u64 = 0;

/// A step that can be taken: the plan, its weights, its one sequence.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) plan: Plan,
    weights: Weights,
    sequence: Sequence,
}

impl Step {
    /// Of an experiment's text, with fresh weights and random tokens. Overrides are the text's own.
    pub(crate) fn new(yaml: &str) -> Result<Step> {
        let experiment = parse("bench", yaml, &[]).map_err(|problems| anyhow!("{problems}"))?;
        let plan = Plan::new(experiment, None).map_err(|problems| anyhow!("{problems}"))?;
        let weights = Llama::random(&Setup::new(&plan, 1).config, SEED)?;
        let sequence = random(plan.experiment.data.tokens, plan.vocabulary());
        Ok(Step { plan, weights, sequence })
    }

    /// Ranks on `cores` cores that take the step as often as they are told, always on the same
    /// tokens.
    pub(crate) fn crew(&self, cores: usize) -> Result<Crew<Stepped>> {
        let Step { plan, weights, sequence } = self.clone();
        let world = plan.ranks.len();
        let source: Arc<dyn Source> = Arc::new(Fixed { sequence, vocabulary: plan.vocabulary() });
        Crew::start(world, move |comm: Arc<dyn Communicator>| -> Result<Work<Stepped>> {
            let mut stepper = Stepper::new(comm, &plan, cores, source.clone(), &weights)?;
            Ok(Box::new(move || Ok(stepper.step()?)))
        })
    }

    /// Writes what another program needs to take the same step.
    pub(crate) fn export(&self, folder: &Path) -> Result<()> {
        let write = || -> Result<()> {
            fs::create_dir_all(folder)?;
            let config = write_config(&self.plan.shape, Dtype::F32);
            fs::write(folder.join("config.json"), config)?;
            save(folder, &self.weights, u64::MAX)?;
            let ids: Vec<i64> = self.sequence.inputs.iter().map(|&id| i64::from(id)).collect();
            let ids = Tensor::from_vec(ids, (1, self.sequence.inputs.len()), &Device::Cpu)?;
            save_file(&folder.join("tokens.safetensors"), &[("input_ids", &ids)])?;
            Ok(())
        };
        write().with_context(|| format!("cannot export to `{}`", folder.display()))
    }
}

/// Uniform ids. The last has no successor to ask for.
fn random(tokens: usize, vocabulary: usize) -> Sequence {
    let key = Key { seed: SEED, purpose: "bench", name: "tokens" };
    let id = |index| uniform(key, index as u64, vocabulary as u64) as u32;
    let inputs: Vec<u32> = (0..tokens).map(id).collect();
    let next = inputs.iter().skip(1).map(|&id| i64::from(id));
    let targets = next.chain([IGNORED]).collect();
    Sequence { inputs, targets }
}

/// The same sequence in every step.
#[derive(Debug)]
struct Fixed {
    sequence: Sequence,
    vocabulary: usize,
}

impl Source for Fixed {
    fn batch(&self, _: u64) -> Result<Vec<Sequence>, DataError> {
        Ok(vec![self.sequence.clone()])
    }
    fn batches(&self) -> Option<u64> {
        None
    }
    fn fingerprint(&self) -> String {
        String::new()
    }
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}
