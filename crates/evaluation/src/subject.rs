//! The subject of an evaluation: a model's weights, and how its sequences are split.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::Tokenizer;
use annulus_experiment::{BYTES, ModelSource, Reproducible, Resolved, generation_ends};
use annulus_files::hugging_face::TOKENIZER;
use annulus_plan::Plan;
use annulus_train::{
    DeviceWeights, Result, Saved, Setup, TrainError, Trained, TrainedBy, check_processes_agree,
    shared,
};

/// A callback for progress: what is done, how much of it, of how much.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// A model that can be evaluated at any length.
#[derive(Debug)]
pub struct Subject {
    /// The plan of its experiment, which also says what is evaluated.
    pub plan: Plan,
    /// The weights as layers take them, on the device that computes.
    pub weights: DeviceWeights,
    /// The folder that the weights were read from.
    pub folder: PathBuf,
    /// The number of steps that the weights were trained for.
    pub step: u64,
    /// What trained the weights: the evaluated experiment may differ from its own.
    pub(crate) trained_by: Option<TrainedBy>,
    /// Flaws of the folder that did not keep it from being read.
    pub warnings: Vec<String>,
    /// The tokenizer of the texts; `None`: the data are token ids, and no tokenizer lies beside the weights.
    tokenizer: Option<Arc<Tokenizer>>,
    /// Whether texts and token caches are checked against their hashes even if nothing indicates a change.
    pub verify_cache: bool,
    /// The setup at the training length.
    setup: Setup,
}

impl Subject {
    /// The model of `plan` with the weights of `checkpoint`, or those that `model.path` names; `setup` is the plan's on
    /// the processes that evaluate. Where the data have no tokenizer, it is the one beside the weights.
    ///
    /// # Errors
    /// When there are no weights, they belong to another model, or the tokenizer beside them cannot be read.
    pub fn open(
        plan: &Plan,
        setup: Setup,
        checkpoint: Option<Saved>,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Result<Subject> {
        let Trained { weights, folder, step, by: trained_by, warnings } = match checkpoint {
            Some(checkpoint) => Trained::of_run(plan, &setup, checkpoint)?,
            None => Trained::of_folder(plan, &setup)?,
        };
        // Of data that are token ids: files of earlier versions name bytes by default.
        let is_open = |one: &Arc<Tokenizer>| {
            plan.experiment.data.format.is_text() || !matches!(**one, Tokenizer::Bytes)
        };
        let tokenizer = match tokenizer {
            Some(tokenizer) if is_open(&tokenizer) => Some(tokenizer),
            other => beside(&folder)?.or(other),
        };
        Ok(Subject {
            weights: setup.placed(&weights)?,
            folder,
            step,
            trained_by,
            warnings,
            tokenizer,
            verify_cache: false,
            plan: plan.clone(),
            setup,
        })
    }

    /// The tokenizer of the texts.
    ///
    /// # Errors
    /// When the data are token ids, and no tokenizer lies beside the weights.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| {
            TrainError::configuration(
                format!("`{}` has no tokenizer: its data are token ids", self.folder.display()),
                format!("name one by `data.tokenizer=…`, or `{BYTES}`"),
            )
        })
    }

    /// The ids at which generation ends: the model's own, those of its generation settings, and the one that ended documents in training.
    ///
    /// # Errors
    /// Settings that cannot be read, and where there is no tokenizer.
    pub fn ends(&self) -> Result<Vec<u32>> {
        let own = self.plan.shape.special("eos_token_id");
        let settings = generation_ends(&self.folder).map_err(TrainError::Config)?;
        Ok([&own[..], &settings, self.tokenizer()?.ends()].concat())
    }

    /// Runs `make` on every process; if it fails on one, all stop and one reports the reason.
    pub(crate) fn shared<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        shared(&self.setup.processes, make)
    }

    /// An error unless every process has read the same, by its name and bytes that tell it from others.
    pub(crate) fn check_processes_agree(&self, what: &str, read: Vec<u8>) -> Result<()> {
        check_processes_agree(&self.setup.processes, None, None, &[(what, read)])
    }

    /// The subject's model and split, set up for sequences of `tokens`, one at a time.
    ///
    /// # Errors
    /// When sequences of this length cannot be split so.
    pub fn setup(&self, tokens: usize) -> Result<Setup> {
        let Resolved { experiment, model, vocabulary } = self.reaching(tokens);
        self.split(&Resolved::new(experiment.of_tokens(tokens), model, vocabulary)?)
    }

    /// [`Subject::setup`] for a prompt of `prompt` tokens that grows to `all`: RoPE's frequencies and the windows of layers are those of the
    /// whole length.
    ///
    /// # Errors
    /// As [`Subject::setup`].
    pub fn setup_of_prompt(&self, prompt: usize, all: usize) -> Result<Setup> {
        let Resolved { experiment, model, vocabulary } = self.reaching(all);
        let global = experiment.attention.masking.global.clone();
        let experiment = experiment.of_prompt(&model, prompt, all)?;
        let mut setup = self.split(&Resolved::new(experiment, model, vocabulary)?)?;
        setup.frequencies = self.plan.shape.frequencies(all);
        // Positions that the prompt has not reached yet may be global.
        let beyond = global.iter().flatten().filter(|range| range.end > prompt);
        let beyond: Vec<_> = beyond.map(|range| range.start.max(prompt)..range.end).collect();
        Ok(if beyond.is_empty() { setup } else { setup.with_global(&beyond) })
    }

    /// The longest sequences that the model was extended to; `None`: it was not.
    pub fn longest(&self) -> Option<usize> {
        self.plan.experiment.extend.as_ref().map(|extend| extend.tokens)
    }

    /// The longest sequences that the model was trained for, or extended to; `None`: nothing says.
    pub fn trained_for(&self) -> Option<usize> {
        let Some(by) = &self.trained_by else {
            return self.longest().or(self.plan.shape.max_position_embeddings);
        };
        let trained = by.experiment.phase_at(self.step).data.tokens;
        self.longest().or(self.plan.resolved().model.max_position_embeddings).max(Some(trained))
    }

    /// The subject's experiment without the rules of training, for sequences of up to `tokens`.
    fn reaching(&self, tokens: usize) -> Resolved {
        let mut resolved = self.plan.resolved();
        // Lengths are arbitrary, also without strict blocks: evaluation sums nothing over tokens but the answer's loss.
        resolved.experiment.reproducible = Reproducible::Layout;
        // Nothing is trained, and what the model makes of longer sequences is the question.
        resolved.experiment.model.allow_longer = true;
        if let ModelSource::Inline(shape) = &mut resolved.experiment.model.source {
            shape.max_position_embeddings = None;
        }
        if self.longest().is_some_and(|longest| tokens > longest) {
            // The model as it was extended, whose positions go on as they did. Its adapters have been read.
            let Resolved { experiment, model, .. } = &mut resolved;
            (experiment.extend, experiment.model.rope_theta) = (None, None);
            model.rope.clone_from(&self.plan.shape.rope);
            if let Some(lora) = &mut experiment.lora {
                lora.path = None;
            }
        }
        resolved
    }

    fn split(&self, resolved: &Resolved) -> Result<Setup> {
        let plan = Plan::new(resolved)?;
        let Setup { cores, processors, processes, .. } = self.setup.clone();
        let setup = Setup::new(&plan, cores);
        Ok(Setup { processors, processes, micro_batch: 1, dropout: false, ..setup })
    }
}

/// The tokenizer in a folder of weights, if there is one.
fn beside(folder: &Path) -> Result<Option<Arc<Tokenizer>>> {
    let path = folder.join(TOKENIZER);
    let open = || Ok(Arc::new(Tokenizer::open(&path.to_string_lossy())?));
    path.is_file().then(open).transpose()
}
