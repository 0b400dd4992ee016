//! Checkpoints of other runs that a run cannot do without, which are noted there: the run that made them would delete them as it goes on.

use std::path::Path;

use annulus_experiment::{Experiment, ModelSource, WeightsFrom};
use annulus_plan::Plan;

use crate::checkpoint::need;
use crate::folder::manifest::Manifest;
use crate::run::rerun::beginning;

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

/// Notes what the run of `plan` in `output`, made as `manifest` says, needs: of a fork also the checkpoint that it began from, which is read
/// again when it is reproduced, or starts again. Returns a warning for what cannot be noted.
pub(super) fn mark(plan: &Plan, manifest: &Manifest, output: &Path) -> Vec<String> {
    let unmarked = |folder: &Path| {
        let error = need(folder, output).err()?;
        Some(format!(
            "`{}` is not marked as needed by this run ({error}): export it before its own run resumes and deletes it",
            folder.display()
        ))
    };
    // A run that has checkpoints of its own goes on without the one that it began from.
    let parent = beginning(output, manifest).ok().flatten().map(|fork| fork.from);
    folders(&plan.experiment).chain(parent.as_deref()).filter_map(unmarked).collect()
}
