//! Who is asked: a model's weights, and how its sequences are split.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::Tokenizer;
use annulus_experiment::{Experiment, Reproducible, Resolved};
use annulus_plan::Plan;
use annulus_train::{Placed, Result, Setup, TrainError, Trained, shared};

/// Told of what is done, how much of it, of how much.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// A model that can be asked at any length.
#[derive(Debug)]
pub struct Subject {
    /// What it is, and what is asked.
    pub plan: Plan,
    /// As its layers take them, on the device that computes.
    pub weights: Placed,
    /// Where they were read from.
    pub folder: PathBuf,
    /// Steps they were trained for in their run.
    pub step: u64,
    /// What they were trained by in their run: what is asked may differ from it.
    pub(crate) trained_by: Option<Experiment>,
    /// What was wrong with the folder but did not keep it from being read.
    pub warnings: Vec<String>,
    /// What texts are read by.
    pub tokenizer: Arc<Tokenizer>,
    /// Whether texts and token caches are held to their hashes though nothing says that they have changed.
    pub verify_cache: bool,
    /// At the length that is trained on.
    setup: Setup,
}

impl Subject {
    /// The model of `plan` with the newest weights of the folder `run`, or with those that `model.path` names; `setup` is what the
    /// plan means on the processes that ask. Data without a tokenizer are read as bytes.
    ///
    /// # Errors
    /// When there are no weights, or they are of another model.
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

    /// What every process makes for itself: where one cannot, none goes on, and one says why.
    pub(crate) fn shared<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        shared(&self.setup.processes, make)
    }

    /// The same model and the same way to split, for sequences of so many tokens, one at a time.
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
        // Of any length, of which there may be no blocks: what is asked adds up nothing over tokens but the answer.
        experiment.reproducible = Reproducible::Layout;
        // Nothing is trained: what it makes of longer sequences is what is asked.
        experiment.model.allow_longer = true;
        let plan = Plan::new(&Resolved::new(experiment, model, vocabulary)?)?;
        let Setup { cores, processors, processes, .. } = self.setup.clone();
        let setup = Setup::new(&plan, cores);
        Ok(Setup { processors, processes, micro_batch: 1, dropout: false, ..setup })
    }
}
