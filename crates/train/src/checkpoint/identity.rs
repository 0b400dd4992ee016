//! What a checkpoint and the experiment that resumes from it must have in common.

use std::collections::{BTreeMap, BTreeSet};

use annulus_data::Tokenizer;
use annulus_experiment::{
    BYTES, Dtype, Experiment, KeyDifference, ModelSource, Shape, parse_config, read_saved_config,
    write_config,
};
use annulus_files::hugging_face::TOKENIZER;
use annulus_plan::Plan;
use serde_json::{Map, Value};

use crate::checkpoint::Found;
use crate::{Result, TrainError};

/// Keys of files that may have moved, since their content is compared: the data's fingerprint, the model's config.json, the hash of the
/// weights beside which adapters lie.
const MOVED: [&str; 4] = ["data.path", "data.tokenizer", "model.path", "lora.path"];
/// The beginning of keys of the learning-rate curve, of which only the past is compared.
pub(crate) const CURVE: &str = "schedule.";

/// Whether only a run's checkpoint tells if the run can resume with another value of this key: a path of files that may have moved, or a
/// part of the learning-rate curve.
pub fn decided_by_checkpoint(key: &str) -> bool {
    MOVED.contains(&key) || key.starts_with(CURVE)
}

/// The resolved experiment as YAML that can be read back; of a phase, with all phases of its run.
pub fn resolved_text(plan: &Plan) -> String {
    plan.experiment.written().to_yaml()
}

/// The keys that name files by other paths than the checkpoint's experiment: only what is in them is compared.
pub(crate) fn moved(plan: &Plan, found: &Found) -> Result<Vec<KeyDifference>> {
    let saved = found.state.experiment()?;
    let mut moved = annulus_experiment::differences(&saved, plan.experiment.written());
    moved.retain(|one| MOVED.contains(&one.key.as_str()));
    Ok(moved)
}

/// What a model's folder says of its shape, before `extend`, as the text of a config.json: it may be edited after training, or be gone.
/// `None`: the experiment says it itself.
pub(crate) fn model_text(plan: &Plan) -> Option<String> {
    let is_folder = matches!(plan.experiment.model.source, ModelSource::Folder { .. });
    is_folder.then(|| write_config(&plan.model, plan.experiment.model.dtype))
}

/// The keys in which `plan` differs from a checkpoint's experiment though they may not, with both values.
pub(crate) fn differences(plan: &Plan, found: &Found) -> Result<Vec<String>> {
    let saved = found.state.experiment()?;
    let mut differing: Vec<String> = of_keys(&saved, plan.experiment.written(), found.state.step)
        .iter()
        .map(ToString::to_string)
        .collect();
    if matches!(plan.experiment.model.source, ModelSource::Folder { .. }) {
        differing.extend(other_model(plan, &saved, found)?);
    }
    Ok(differing)
}

/// The keys in which an experiment differs from the one `saved` after `step` steps, though they may not.
pub(crate) fn of_keys(saved: &Experiment, now: &Experiment, step: u64) -> Vec<KeyDifference> {
    let mut differing = annulus_experiment::differences(saved, now);
    let same_curve = is_same_curve(saved, now, step);
    differing.retain(|KeyDifference { key, .. }| {
        !decided_by_checkpoint(key) || key.starts_with(CURVE) && !same_curve
    });
    differing
}

/// The keys in which the model of `plan` differs from that of a checkpoint, with both values.
pub(crate) fn of_model(plan: &Plan, found: &Found) -> Result<Vec<String>> {
    let mut differing = differences(plan, found)?;
    differing.retain(|text| is_of_model(text));
    Ok(differing)
}

/// Whether a difference, as [`differences`] has it in words, is one of the model: then a run cannot be forked with it.
pub(crate) fn is_of_model(difference: &str) -> bool {
    // The phase of the weights says how their RoPE is extended.
    let sections = ["`model.", "`extend.", "`lora.", "`stages"];
    sections.iter().any(|section| difference.starts_with(section))
}

/// Whether the tokenizer of `plan` is another than the one that lies in the checkpoint, which is made up where that is of bytes.
pub(crate) fn has_other_tokenizer(plan: &Plan, found: &Found) -> Result<bool> {
    let now = plan.experiment.data.tokenizer();
    if now == BYTES {
        return Ok(found.state.experiment()?.data.tokenizer() != BYTES);
    }
    let of = |name: &str| Tokenizer::open(name).map(|tokenizer| tokenizer.fingerprint()).ok();
    Ok(of(&found.folder.join(TOKENIZER).display().to_string()) != of(now))
}

/// Whether the learning rates of all steps up to `step` are the same to the bit: then the rest of the curve may change. Phases count their
/// steps themselves.
fn is_same_curve(a: &Experiment, b: &Experiment, step: u64) -> bool {
    let rate =
        |of: &Experiment, t| of.schedule.learning_rate(of.optimizer.learning_rate, t).to_bits();
    a.stages.is_empty() && b.stages.is_empty() && (0..step).all(|t| rate(a, t) == rate(b, t))
}

/// How the model that the experiment `saved` in a checkpoint makes of the plan's folder differs from the checkpoint's, but for special
/// tokens. Its config.json may have been edited in place.
fn other_model(plan: &Plan, saved: &Experiment, found: &Found) -> Result<Option<String>> {
    let then = read_saved_config(&found.folder).map_err(TrainError::Config)?;
    // In the checkpoint's phase and at its length: both change what config.json says.
    let phase = plan.resolved().with(saved.phase_at(found.state.step));
    let Ok(now) = phase.shape() else {
        let folder = found.folder.display();
        return Ok(Some(format!("`model.path` has another model than `{folder}`")));
    };
    let now = parse_config("the model", &write_config(&now, Dtype::F32))?;
    Ok(other_shape(then, now))
}

/// The keys in which a model of `model.path` differs from what it was, but for special tokens; `None`: it is the same.
pub(crate) fn other_shape(then: Shape, now: Shape) -> Option<String> {
    let [then, now] = [then, now].map(written);
    let of = |keys: &Map<String, Value>, key: &str| keys.get(key).cloned().unwrap_or_default();
    let all: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let both = all.into_iter().map(|key| (key, of(&then, key), of(&now, key)));
    let differing: Vec<String> = both
        .filter(|(_, was, is)| was != is)
        .map(|(key, was, is)| format!("`{key}` was `{was}` and is `{is}`"))
        .collect();
    let named = || format!("`model.path` has another model: {}", differing.join(", "));
    (!differing.is_empty()).then(named)
}

/// The keys of a model's config.json, but for special tokens; `rope_parameters` repeats others.
fn written(shape: Shape) -> Map<String, Value> {
    let plain = Shape { special_tokens: BTreeMap::new(), ..shape };
    let text = write_config(&plain, Dtype::F32);
    let mut keys: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
    keys.remove("rope_parameters");
    keys
}
