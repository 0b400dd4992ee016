//! The subject of an evaluation: a model's weights, and how its sequences are split.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::Tokenizer;
use annulus_experiment::{Experiment, Reproducible, Resolved};
use annulus_plan::Plan;
use annulus_train::{Placed, Result, Setup, TrainError, Trained, shared};

/// A callback for progress: what is done, how much of it, of how much.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// A model that can be evaluated at any length.
#[derive(Debug)]
pub struct Subject {
    /// The plan of its experiment, which also says what is evaluated.
    pub plan: Plan,
    /// The weights as layers take them, on the device that computes.
    pub weights: Placed,
    /// The folder that the weights were read from.
    pub folder: PathBuf,
    /// The number of steps that the weights were trained for.
    pub step: u64,
    /// The experiment that trained the weights, from which the evaluated one may differ.
    pub(crate) trained_by: Option<Experiment>,
    /// Flaws of the folder that did not keep it from being read.
    pub warnings: Vec<String>,
    /// The tokenizer of the texts.
    pub tokenizer: Arc<Tokenizer>,
    /// Whether texts and token caches are checked against their hashes even if nothing indicates a change.
    pub verify_cache: bool,
    /// The setup at the training length.
    setup: Setup,
}

impl Subject {
    /// The model of `plan` with the newest weights of the run in folder `run`, or those that `model.path` names; `setup` is the plan's on
    /// the processes that evaluate. Data without a tokenizer are read as bytes.
    ///
    /// # Errors
    /// When there are no weights, or they belong to another model.
    pub fn open(
        plan: &Plan,
        setup: Setup,
        run: Option<&Path>,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Result<Subject> {
        let Trained { weights, folder, step, by: trained_by, warnings } = match run {
            Some(run) => Trained::of_run(plan, &setup, run)?,
            None => Trained::of_folder(plan, &setup)?,
        };
        Ok(Subject {
            weights: setup.placed(&weights)?,
            folder,
            step,
            trained_by,
            warnings,
            tokenizer: tokenizer.unwrap_or_else(|| Arc::new(Tokenizer::Bytes)),
            verify_cache: false,
            plan: plan.clone(),
            setup,
        })
    }

    /// Runs `make` on every process; if it fails on one, all stop and one reports the reason.
    pub(crate) fn shared<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        shared(&self.setup.processes, make)
    }

    /// The subject's model and split, set up for sequences of `tokens`, one at a time.
    ///
    /// # Errors
    /// When sequences of this length cannot be split so.
    pub fn setup(&self, tokens: usize) -> Result<Setup> {
        let Resolved { mut experiment, model, vocabulary } = self.plan.resolved();
        let longest = experiment.extend.as_ref().map_or(usize::MAX, |extend| extend.tokens);
        if tokens > longest {
            return Err(TrainError::Configuration {
                message: format!("{tokens} tokens are longer than the {longest} of `extend`"),
                hint: Some(format!(
                    "ask with at most {longest} (`evaluation.lengths`), or train for longer sequences"
                )),
            });
        }
        experiment.data.tokens = tokens;
        // Lengths are arbitrary, also without strict blocks: evaluation sums nothing over tokens but the answer's loss.
        experiment.reproducible = Reproducible::Layout;
        // Nothing is trained, and what the model makes of longer sequences is the question.
        experiment.model.allow_longer = true;
        let plan = Plan::new(&Resolved::new(experiment, model, vocabulary)?)?;
        let Setup { cores, processors, processes, .. } = self.setup.clone();
        let setup = Setup::new(&plan, cores);
        Ok(Setup { processors, processes, micro_batch: 1, dropout: false, ..setup })
    }
}
