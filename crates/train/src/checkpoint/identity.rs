//! What a checkpoint and the experiment that resumes from it must have in common.

use std::collections::BTreeMap;

use annulus_experiment::{Experiment, Shape, parse, parse_config, read_saved_config, write_config};
use annulus_plan::Plan;

use crate::checkpoint::Found;
use crate::{Result, TrainError};

/// Keys of files that may have moved, since their content is compared: the data's fingerprint, the model's config.json, the hash of the
/// weights beside which adapters lie.
const MOVED: [&str; 4] = ["data.path", "data.tokenizer", "model.path", "lora.path"];
/// The beginning of keys of the learning-rate curve, of which only the past is compared.
const CURVE: &str = "schedule.";

/// The resolved experiment as YAML that can be read back; of a phase, with all phases of its run.
pub fn resolved_text(plan: &Plan) -> String {
    plan.experiment.written().to_yaml()
}

/// The keys in which `plan` differs from a checkpoint's experiment though they may not, with both values.
pub(crate) fn differences(plan: &Plan, found: &Found) -> Result<Vec<String>> {
    let (saved, now) = (saved(found)?, plan.experiment.written());
    let mut differing = annulus_experiment::differences(&saved, now);
    let moved = differing.iter().any(|(key, ..)| key == "model.path");
    let same_curve = is_same_curve(&saved, now, found.state.step);
    differing.retain(|(key, ..)| {
        !(MOVED.contains(&key.as_str()) || same_curve && key.starts_with(CURVE))
    });
    let mut differing: Vec<String> = differing
        .into_iter()
        .map(|(key, was, is)| format!("`{key}` was `{was}` and is `{is}`"))
        .collect();
    if moved && !is_same_model(plan, found) {
        let folder = found.folder.display();
        differing.push(format!("`model.path` has another model than `{folder}/config.json`"));
    }
    Ok(differing)
}

/// The keys in which the model of `plan` differs from that of a checkpoint, with both values.
pub(crate) fn of_model(plan: &Plan, found: &Found) -> Result<Vec<String>> {
    let mut differing = differences(plan, found)?;
    // The phase of the weights says how their RoPE is extended.
    let sections = ["`model.", "`extend.", "`lora.", "`stages"];
    differing.retain(|text| sections.iter().any(|section| text.starts_with(section)));
    Ok(differing)
}

/// The experiment that is saved in a checkpoint.
pub(crate) fn saved(found: &Found) -> Result<Experiment> {
    parse("state.json", &found.state.experiment, &[]).map_err(|problems| TrainError::Checkpoint {
        message: format!("the checkpoint's experiment cannot be read:\n{problems}"),
        hint: Some("it was written by another version: set another `output`".into()),
    })
}

/// Whether the learning rates of all steps up to `step` are the same to the bit: then the rest of the curve may change. Phases count their
/// steps themselves.
fn is_same_curve(a: &Experiment, b: &Experiment, step: u64) -> bool {
    let rate =
        |of: &Experiment, t| of.schedule.learning_rate(of.optimizer.learning_rate, t).to_bits();
    a.stages.is_empty() && b.stages.is_empty() && (0..step).all(|t| rate(a, t) == rate(b, t))
}

/// Whether the checkpoint's config.json is of the plan's model in the checkpoint's phase, but for special tokens: phases extend it
/// differently.
fn is_same_model(plan: &Plan, found: &Found) -> bool {
    let resolved = plan.resolved();
    let phase = resolved.with(plan.experiment.written().phase_at(found.state.step));
    let Ok(shape) = phase.shape() else { return false };
    let now = parse_config("now", &write_config(&shape, plan.experiment.model.dtype));
    let plain = |shape: Shape| Shape { special_tokens: BTreeMap::new(), ..shape };
    let [now, then] = [now, read_saved_config(&found.folder)].map(|shape| shape.ok().map(plain));
    now.is_some() && now == then
}
