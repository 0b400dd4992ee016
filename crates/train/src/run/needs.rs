//! Checkpoints of other runs that a run cannot do without, which are noted there: the run that made them would delete them as it goes on.

use std::path::Path;

use annulus_experiment::{Experiment, ModelSource, WeightsFrom};
use annulus_plan::Plan;

use crate::checkpoint::need;

/// The folders of pretrained weights that a run begins with: the model, or the base of adapters, and adapters that are continued. A run
/// reads them again when it is resumed, trained for longer or reproduced.
fn folders(experiment: &Experiment) -> impl Iterator<Item = &Path> {
    let model = match &experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => Some(&**path),
        _ => None,
    };
    let adapters = experiment.lora.as_ref().and_then(|lora| lora.path.as_deref());
    model.into_iter().chain(adapters)
}

/// Notes what the run of `plan` in `output` needs; returns a warning for what cannot be noted.
pub(super) fn mark(plan: &Plan, output: &Path) -> Vec<String> {
    let unmarked = |folder: &Path| {
        let error = need(folder, output).err()?;
        Some(format!(
            "`{}` is not marked as needed by this run ({error}): export it before its own run resumes and deletes it",
            folder.display()
        ))
    };
    folders(&plan.experiment).filter_map(unmarked).collect()
}
