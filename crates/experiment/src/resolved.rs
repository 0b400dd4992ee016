//! An experiment with the model that it names, which has been read once: what plans are made of.

use annulus_architecture::{Scaling, Shape, check_frequencies, read_config};
use annulus_yaml::{Problem, Problems};

use crate::{BYTES, Experiment, ModelSource, WeightsFrom, lora, mask, sliding};

/// The number of values of a byte.
const BYTE_VALUES: usize = 256;

/// An experiment whose model has been read.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The experiment, with the sliding windows of the model's own layers written out.
    pub experiment: Experiment,
    /// The model's shape as config.json or the file has it, before `extend`.
    pub model: Shape,
    /// The number of the tokenizer's tokens; `None` where the data are token ids.
    pub vocabulary: Option<usize>,
}

impl Resolved {
    /// Reads the config.json of `model.path`, where there is one.
    ///
    /// # Errors
    /// What is wrong with it, or with what the experiment says of the model.
    pub fn read(experiment: Experiment, vocabulary: Option<usize>) -> Result<Resolved, Problems> {
        let model = match &experiment.model.source {
            ModelSource::Folder { path, .. } => read_config(path)?,
            ModelSource::Inline(shape) => Shape::clone(shape),
        };
        Resolved::new(experiment, model, vocabulary)
    }

    /// An experiment with its model `shape`, which has been read already.
    ///
    /// # Errors
    /// When its mask, windows or adapters do not fit the model, or sequences are longer than the model was trained for.
    pub fn new(
        experiment: Experiment,
        model: Shape,
        vocabulary: Option<usize>,
    ) -> Result<Resolved, Problems> {
        lora::fits(&experiment, &model)?;
        let idle = mask::shown_anyway(&experiment, &model);
        if !idle.is_empty() {
            return Err(Problems(idle));
        }
        let experiment = sliding::with_windows(experiment, &model)?;
        let resolved = Resolved { experiment, model, vocabulary };
        resolved.refuse_longer()?;
        lora::stretched_alike(&resolved)?;
        Ok(resolved)
    }

    /// This model with another experiment.
    #[must_use]
    pub fn with(&self, experiment: Experiment) -> Resolved {
        Resolved { experiment, ..self.clone() }
    }

    /// The training phases, each an experiment; one without `stages` is its only phase.
    pub fn phases(&self) -> Vec<Resolved> {
        self.experiment.phases().into_iter().map(|phase| self.with(phase)).collect()
    }

    /// The shape that is trained: extended, and with the size of its vocabulary.
    ///
    /// # Errors
    /// When the model cannot be extended so, or nothing says how many tokens the vocabulary has.
    pub fn shape(&self) -> Result<Shape, Problems> {
        let experiment = &self.experiment;
        let mut shape = self.model.clone();
        shape.rope.theta = experiment.model.rope_theta.unwrap_or(shape.rope.theta);
        if let Some(extension) = &experiment.extend {
            shape = extension.apply(shape, &experiment.places)?;
            if let Some(broken) = check_frequencies(&shape, &experiment.places, "extend") {
                return Err(broken.into());
            }
        }
        // Unscaled frequencies reach no further than the length that they were trained for.
        let claimed = self.trained_for().filter(|_| experiment.extend.is_none());
        let grown = || shape.longest(experiment.data.tokens);
        shape.max_position_embeddings = Some(claimed.unwrap_or_else(grown));
        shape.vocab_size = Some(self.rows(&shape)?);
        Ok(sliding::shape_with_windows(shape, &experiment.attention))
    }

    /// The number of rows of the embedding.
    fn rows(&self, shape: &Shape) -> Result<usize, Problem> {
        let (places, tokenizer) = (&self.experiment.places, self.experiment.data.tokenizer());
        // The bytes suffice for one document; a second needs a separator, which is checked when data is opened.
        let spare = |rows| tokenizer == BYTES && rows >= BYTE_VALUES;
        match (shape.vocab_size, self.vocabulary) {
            (Some(rows), Some(words)) if rows < words && !spare(rows) => {
                let message = format!(
                    "the model has {rows} tokens, but the tokenizer `{tokenizer}` has {words}"
                );
                let of_folder = places.contains("model.path");
                let key = if of_folder { "model.path" } else { "model.vocab_size" };
                let hint =
                    format!("a vocabulary of at least {words}, or the model's own tokenizer");
                Err(places.problem(key, message).hint(hint))
            }
            (Some(rows), _) => Ok(rows),
            (None, Some(words)) => Ok(words),
            (None, None) => {
                let message = "`model.vocab_size` is missing, and no tokenizer says it";
                Err(places.problem("model", message).hint("add `vocab_size:` under `model:`"))
            }
        }
    }

    /// Refuses phases with sequences longer than pretrained weights were trained for. Models of `rope_type: dynamic` rescale themselves.
    fn refuse_longer(&self) -> Result<(), Problems> {
        self.refuse_shorter()?;
        let allowed = self.experiment.model.allow_longer;
        let Some(own) = self.trained_for().filter(|_| !allowed) else { return Ok(()) };
        let phases = self.experiment.phases();
        let longer =
            phases.iter().filter(|phase| phase.extend.is_none() && phase.data.tokens > own);
        let problems: Vec<Problem> = longer.map(|phase| too_long(phase, own)).collect();
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
    }

    /// Refuses an inline `max_position_embeddings` that is shorter than the sequences.
    fn refuse_shorter(&self) -> Result<(), Problems> {
        let ModelSource::Inline(shape) = &self.experiment.model.source else { return Ok(()) };
        let Experiment { stages, extend, data, .. } = &self.experiment;
        // Scaled frequencies reach further than that length, and phases may grow towards it.
        if shape.rope.scaling != Scaling::Default || !stages.is_empty() || extend.is_some() {
            return Ok(());
        }
        let tokens = data.tokens;
        let Some(own) = shape.max_position_embeddings.filter(|own| tokens > *own) else {
            return Ok(());
        };
        let key = "model.max_position_embeddings";
        let message = format!("{own} positions, but sequences have {tokens} tokens");
        let hint = format!("set it to {tokens} or more, or leave it out: it follows `data.tokens`");
        Err(self.experiment.places.problem(key, message).hint(hint).into())
    }

    /// The longest sequence that pretrained weights were trained for; `None` where weights are new, or as [`Shape::trained_for`] has it.
    fn trained_for(&self) -> Option<usize> {
        let ModelSource::Folder { weights: WeightsFrom::Pretrained, .. } =
            &self.experiment.model.source
        else {
            return None;
        };
        self.model.trained_for()
    }
}

/// The problem of a phase whose sequences are longer than `own`.
fn too_long(phase: &Experiment, own: usize) -> Problem {
    let tokens = phase.data.tokens;
    let message = format!(
        "sequences of {tokens} tokens are longer than the {own} that the model was trained for"
    );
    let hint = format!(
        "stretch its rotary frequencies with `extend: {{rope: yarn, tokens: {tokens}}}`, \
         use at most {own} tokens, or set `model.allow_longer: true` to train without"
    );
    phase.places.problem("data.tokens", message).hint(hint)
}
