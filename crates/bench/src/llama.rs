//! A training step that can be repeated, and the files with which another program takes it: `config.json`, `model.safetensors`,
//! `tokens.safetensors`.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_data::{DataError, Sequence, Source, Tokens};
use annulus_experiment::{Dtype, Experiment, Resolved, parse, write_config};
use annulus_model::{Config, Llama, Weights, save, save_file};
use annulus_ops::{IGNORED, Key, uniform};
use annulus_plan::Plan;
use annulus_sequence::Positions;
use annulus_simulate::plan;
use annulus_train::{
    Opening, Setup, Stepped, Stepper, Store, TrainError, check_memory, open_data, place_on_devices,
};
use anyhow::{Context, Result, anyhow};
use candle_core::{DType, Device, Tensor};

use crate::crew::{Crew, Work};

/// The seed of random tokens.
const SEED: u64 = 0;

/// A training step: its plan and data. Random weights are drawn when they are wanted, after [`Step::setup`] has opened the device: a
/// machine without it, or a large model that does not fit, is told at once.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) plan: Plan,
    source: Arc<dyn Source>,
}

impl Step {
    /// A step of an experiment's text, always on the same random tokens.
    pub(crate) fn on_random_tokens(yaml: &str) -> Result<Step> {
        let plan = planned(parse("bench", yaml, &[])?, None)?;
        let vocabulary = plan.vocabulary();
        let sequence = random(plan.experiment.data.tokens, vocabulary);
        Ok(Step { plan, source: Arc::new(Fixed { sequence, vocabulary }) })
    }

    /// A step of an experiment on its own data, with this number of ids.
    pub(crate) fn on_its_data(experiment: Experiment, vocabulary: usize) -> Result<Step> {
        let plan = planned(experiment, Some(vocabulary))?;
        let data = open_data(&plan, Opening::default(), &mut |_| {})?;
        Ok(Step { plan, source: data.train })
    }

    /// Random weights: masters, whatever dtype layers compute in.
    fn weights(&self) -> Result<Weights> {
        let config = Config { dtype: DType::F32, ..Setup::new(&self.plan, 1).config };
        Ok(Llama::random(&config, self.plan.experiment.seed)?)
    }

    /// The setup on the device that the experiment names, or on `cores` cores.
    pub(crate) fn setup(&self, cores: usize) -> Result<Arc<Setup>> {
        let hinted = |error: TrainError| match error.hint() {
            Some(hint) => anyhow!("{error}; {hint}"),
            None => error.into(),
        };
        let setup = Setup::on_its_device(&self.plan, cores).map_err(hinted)?;
        // A plan counts memory for a CPU; a GPU reports itself when it is full.
        if setup.processors.is_empty() {
            check_memory(&self.plan).map_err(hinted)?;
        }
        Ok(Arc::new(setup))
    }

    /// Ranks that take a step for every order.
    pub(crate) fn crew(&self, setup: &Arc<Setup>) -> Result<Crew<Stepped>> {
        let (Step { plan, source }, setup) = (self.clone(), setup.clone());
        let weights = self.weights()?;
        let store = Store::new(&setup, &weights.clone().into(), 0..plan.ranks.len())?;
        Crew::start_in(
            setup.joined(),
            plan.ranks.len(),
            move |comm: Arc<dyn Communicator>| -> Result<Work<Stepped>> {
                let mut stepper = {
                    let source = source.clone();
                    Stepper::new(&setup, comm, &plan, source, &weights, &store)?
                };
                Ok(Box::new(move || Ok(stepper.step()?)))
            },
        )
    }

    /// Writes the configuration, weights and tokens with which another program takes the same step.
    pub(crate) fn export(&self, folder: &Path) -> Result<()> {
        let write = || -> Result<()> {
            fs::create_dir_all(folder)?;
            let config = write_config(&self.plan.shape, Dtype::F32);
            fs::write(folder.join("config.json"), config)?;
            save(folder, &self.weights()?, u64::MAX)?;
            let batch = self.source.batch(0)?;
            let shape = (batch.len(), self.plan.experiment.data.tokens);
            let ids = batch.iter().flat_map(|sequence| &sequence.inputs);
            let ids: Vec<i64> = ids.map(|&id| i64::from(id)).collect();
            let targets: Vec<i64> = batch.into_iter().flat_map(|one| one.targets).collect();
            let [ids, targets] =
                [ids, targets].map(|all| Tensor::from_vec(all, shape, &Device::Cpu));
            let (ids, targets) = (ids?, targets?);
            let all = [("input_ids", &ids), ("targets", &targets)];
            Ok(save_file(folder, "tokens.safetensors", &all)?)
        };
        write().with_context(|| format!("cannot export to `{}`", folder.display()))
    }
}

/// The plan of an experiment.
pub(crate) fn planned(mut experiment: Experiment, vocabulary: Option<usize>) -> Result<Plan> {
    place_on_devices(&mut experiment);
    Ok(plan(&Resolved::read(experiment, vocabulary)?)?)
}

/// A sequence of uniform random ids. The last one has no target.
fn random(tokens: usize, vocabulary: usize) -> Sequence {
    let key = Key { seed: SEED, purpose: "bench", name: "tokens" };
    let id = |index| uniform(key, index as u64, vocabulary as u64) as u32;
    let inputs: Vec<u32> = (0..tokens).map(id).collect();
    let next = inputs.iter().skip(1).map(|&id| i64::from(id));
    let targets = next.chain([IGNORED]).collect();
    Sequence { inputs, targets, documents: Vec::new() }
}

/// A source with the same sequence for every step.
#[derive(Debug)]
struct Fixed {
    sequence: Sequence,
    vocabulary: usize,
}

impl Source for Fixed {
    fn rows(&self) -> usize {
        1
    }
    fn tokens(&self) -> usize {
        self.sequence.inputs.len()
    }
    fn read(
        &self,
        _: u64,
        _: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        into.push(&self.sequence, positions);
        Ok(())
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
