//! Checkpoints of other runs that a run cannot do without, which are noted there: the run that made them would delete them as it goes on.

use std::path::Path;

use annulus_experiment::{Experiment, ModelSource, WeightsFrom};
use annulus_plan::Plan;

use crate::checkpoint::{need, release as released};

/// The folders of pretrained weights that a run begins with.
#[derive(Default)]
struct Needs<'a> {
    /// The base of adapters, without which they are useless.
    always: Option<&'a Path>,
    /// What is read again until the run is finished: a model that is trained in full, adapters that are continued.
    until_finished: Option<&'a Path>,
}

impl Needs<'_> {
    fn of(experiment: &Experiment) -> Needs<'_> {
        let ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } =
            &experiment.model.source
        else {
            return Needs::default();
        };
        match &experiment.lora {
            Some(lora) => Needs { always: Some(path), until_finished: lora.path.as_deref() },
            None => Needs { always: None, until_finished: Some(path) },
        }
    }
}

/// Notes what the run of `plan` in `output` needs; returns a warning for what cannot be noted.
pub(super) fn mark(plan: &Plan, output: &Path) -> Vec<String> {
    let Needs { always, until_finished } = Needs::of(&plan.experiment);
    let unmarked = |folder: &Path| {
        let error = need(folder, output).err()?;
        Some(format!(
            "`{}` is not marked as needed by this run ({error}): export it before its own run resumes and deletes it",
            folder.display()
        ))
    };
    [always, until_finished].into_iter().flatten().filter_map(unmarked).collect()
}

/// Takes back what a run needed only until it was finished.
pub(super) fn release(experiment: &Experiment, output: &Path) {
    if let Some(folder) = Needs::of(experiment).until_finished {
        // What stays noted is kept, and its own run says why.
        let _ = released(folder, output);
    }
}
