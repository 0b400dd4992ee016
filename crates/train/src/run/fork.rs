//! A run that begins from another run's checkpoint: with its weights, its count of steps and, unless asked not to, its optimizer state;
//! everything but the model may differ.

use std::path::Path;

use annulus_experiment::{Dtype, Experiment, ModelSource, WeightsFrom, read_saved_config};
use annulus_plan::Plan;

use crate::checkpoint::{checkpoint_folder, identity, is_checkpoint, named_by, steps};
use crate::error::failure;
use crate::folder::manifest::Fork;
use crate::run::trained_on;
use crate::setup::initial::base_of;
use crate::setup::saved::load;
use crate::setup::start::Start;
use crate::{Result, Setup, TrainError};

impl Fork {
    /// The state to begin with, and what is wrong with newer checkpoints.
    ///
    /// # Errors
    /// No checkpoint, or one of another model or after the last step of `plan`.
    pub(crate) fn start(&self, plan: &Plan, setup: &Setup) -> Result<(Start, Vec<String>)> {
        let (found, mut warnings) = named_by(&self.from)?;
        let folder = found.folder.display();
        let refused = |message: String, hint: &str| TrainError::checkpoint(message, hint);
        let differing = identity::of_model(plan, &found)?;
        if !differing.is_empty() {
            let message = format!("`{folder}` is of another model: {}", differing.join("; "));
            let (saved, now) = (found.state.experiment()?, plan.experiment.written());
            let begin = begin_with_weights(&folder.to_string(), &saved, now);
            let hint = format!(
                "write the same `model`, `extend` and `lora`, or leave `--from` out ({begin})"
            );
            return Err(refused(message, &hint));
        }
        refuse_longer(plan, &found.folder)?;
        let (done, last) = (found.state.step, plan.experiment.last_step());
        if done >= last {
            let message = format!("`{folder}` has {done} steps, and the last step here is {last}");
            return Err(refused(
                message,
                "set more `schedule.steps`: they count from the first run's beginning",
            ));
        }
        warnings.extend(trained_on::warning(&plan.experiment, Some(&found.folder)));
        let start = load(&found, base_of(plan), &setup.config)?;
        Ok((if self.fresh_optimizer { start.anew() } else { start }, warnings))
    }

    /// The fork from the checkpoint of `step` itself, where `from` is the folder of its run, which may have saved others since.
    pub(crate) fn at(&self, step: u64) -> Fork {
        if is_checkpoint(&self.from) {
            return self.clone();
        }
        Fork { from: checkpoint_folder(&self.from, step), ..self.clone() }
    }

    /// Whether both begin alike, however their paths are written.
    fn is(&self, other: &Fork) -> bool {
        let [own, others] = [self, other].map(|fork| fork.from.canonicalize());
        let is_same = self.from == other.from
            || own.ok().zip(others.ok()).is_some_and(|(own, others)| own == others);
        is_same && self.fresh_optimizer == other.fresh_optimizer
    }

    /// An error if `folder` holds a run that began elsewhere: it would resume from its own checkpoint.
    pub(crate) fn refuse_another(&self, folder: &Path, began: Option<&Fork>) -> Result<()> {
        let read = |error| failure("read", folder, &error);
        if began.is_some_and(|began| self.is(began)) || steps(folder).map_err(read)?.is_empty() {
            return Ok(());
        }
        let folder = folder.display();
        let began = began.map_or_else(
            || "did not begin with `--from`".to_owned(),
            |began| format!("began from `{}`", began.from.display()),
        );
        Err(TrainError::checkpoint(
            format!("`{folder}` is a run already, which {began}"),
            "set another `output`, or leave `--from` out to resume it",
        ))
    }
}

/// How a run of another model begins with the weights of the checkpoint or run in the folder `from`, of the experiment `saved`: a fork keeps
/// the model.
pub(crate) fn begin_with_weights(from: &str, saved: &Experiment, now: &Experiment) -> String {
    let change = |path: &str| match (&now.model.source, now.model.dtype) {
        (ModelSource::Folder { weights: WeightsFrom::Random, .. }, _) => {
            format!("model.path={path} model.weights=pretrained")
        }
        (ModelSource::Folder { .. }, _) => format!("model.path={path}"),
        // No sizes may stand beside a path.
        (ModelSource::Inline(_), Dtype::F32) => format!("model=null model.path={path}"),
        (ModelSource::Inline(_), dtype) => {
            format!("model=null model.path={path} model.dtype={}", dtype.word())
        }
    };
    if saved.lora.is_none() {
        return format!("to begin with the trained weights, add `{}`", change(from));
    }
    format!(
        "to begin with the trained weights, merge the adapters by `annulus export {from} --merge --out MERGED` and add `{}`",
        change("MERGED")
    )
}

/// An error if sequences are longer than the checkpoint's model was trained for, as for pretrained weights.
fn refuse_longer(plan: &Plan, checkpoint: &Path) -> Result<()> {
    let experiment = &plan.experiment;
    let trained = read_saved_config(checkpoint)?.trained_for();
    let tokens = experiment.data.tokens;
    match trained.filter(|_| !experiment.model.allow_longer) {
        Some(trained) if tokens > trained => Err(TrainError::configuration(
            format!(
                "sequences of {tokens} tokens are longer than the {trained} that `{}` was trained for",
                checkpoint.display()
            ),
            format!(
                "use at most {trained} tokens with `--from`; or begin with its weights: `model.path: {}` and \
                 `extend: {{rope: yarn, tokens: {tokens}}}`, or `model.allow_longer: true` to train without",
                checkpoint.display()
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use annulus_experiment::{Experiment, parse};

    use super::begin_with_weights;

    fn experiment(more: &str) -> Experiment {
        let rest = "data: { tokens: 8 }\noptimizer: { learning_rate: 1 }\nschedule: { steps: 1 }\n";
        let text = format!("name: run\n{more}\n{rest}");
        parse("run.yaml", &text, &[]).unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn another_model_begins_with_whole_weights_or_merged_adapters() {
        let sizes = "hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 260";
        let inline = experiment(&format!("model: {{ {sizes} }}"));
        let rounded = experiment(&format!("model: {{ {sizes}, dtype: bf16 }}"));
        let random = experiment("model: { path: base, weights: random }");
        let adapted = experiment("model: { path: base }\nlora: { rank: 2 }");
        let whole = "to begin with the trained weights, add";
        let merged = "to begin with the trained weights, merge the adapters by `annulus export run --merge --out MERGED` and add";
        for (saved, now, wanted) in [
            (&inline, &inline, format!("{whole} `model=null model.path=run`")),
            (&inline, &rounded, format!("{whole} `model=null model.path=run model.dtype=bf16`")),
            (&inline, &random, format!("{whole} `model.path=run model.weights=pretrained`")),
            (&inline, &adapted, format!("{whole} `model.path=run`")),
            (&adapted, &adapted, format!("{merged} `model.path=MERGED`")),
        ] {
            assert_eq!(begin_with_weights("run", saved, now), wanted);
        }
    }
}
