//! What a checkpoint and the experiment that goes on from it must have in common.

use annulus_experiment::parse;
use annulus_plan::Plan;

use crate::{Result, TrainError};

/// The resolved experiment, as YAML that can be read back; of a stage, with all of them.
pub(crate) fn text(plan: &Plan) -> String {
    plan.experiment.written().to_yaml()
}

/// The keys, other than those that may, in which `plan` differs from what a checkpoint says of
/// itself, with both values.
pub(crate) fn differences(plan: &Plan, saved: &str) -> Result<Vec<String>> {
    let saved = parse("state.json", saved, &[]).map_err(|problems| TrainError::Checkpoint {
        message: format!("the checkpoint's experiment cannot be read:\n{problems}"),
        hint: Some("it was written by another version: set another `output`".into()),
    })?;
    let differing = annulus_experiment::differences(&saved, plan.experiment.written());
    Ok(differing
        .into_iter()
        .map(|(key, was, is)| format!("`{key}` was `{was}` and is `{is}`"))
        .collect())
}

/// The keys in which the model of `plan` differs from that of a checkpoint.
pub(crate) fn of_model(plan: &Plan, saved: &str) -> Result<Vec<String>> {
    let mut differing = differences(plan, saved)?;
    // Which stage weights are of says how they are stretched.
    let sections = ["`model.", "`extend.", "`lora.", "`stages"];
    differing.retain(|text| sections.iter().any(|section| text.starts_with(section)));
    Ok(differing)
}
