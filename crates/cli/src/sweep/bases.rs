//! The checkpoints that a sweep's runs begin with where `model.path` names a run: settled once, when the sweep is first written, so that
//! all its runs begin alike, though the run that they name may train on meanwhile.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, ModelSource, Sweep};
use annulus_train::{begun_with, is_run, model_folder, need_checkpoint, step_of};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print;

/// The name of the list in `sweep.json`.
pub(super) const BASES: &str = "bases";

/// By the folder of a run, the checkpoint that it means.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bases(BTreeMap<PathBuf, PathBuf>);

impl Bases {
    /// Those that `sweep.json` lists.
    pub(super) fn of(record: &Value) -> Bases {
        let listed = record[BASES].as_object().into_iter().flatten();
        let pair = |(run, step): (&String, &Value)| Some((run.into(), step.as_str()?.into()));
        Bases(listed.filter_map(pair).collect())
    }

    /// Gives every run of `sweep` that begins with a run's weights one checkpoint of that: as `self` has it if it is still there, as a run
    /// of the sweep has begun, or else the newest. Runs without a whole checkpoint stay as they are named: the sweep's check reports them.
    pub(super) fn settle(self, sweep: &mut Sweep) -> Bases {
        let Bases(mut bases) = self;
        bases.retain(|_, step| step.is_dir());
        let begun = |experiment: &Experiment| {
            let base = base_of(experiment)?;
            Some((base.to_owned(), begun_with(base, &experiment.output)?))
        };
        for (base, step) in sweep.runs.iter().filter_map(|run| begun(&run.experiment)) {
            bases.entry(base).or_insert(step);
        }
        for run in &mut sweep.runs {
            let Some(base) = base_of(&run.experiment).map(Path::to_owned) else { continue };
            let Some(step) = bases.get(&base).cloned().or_else(|| model_folder(&base).ok()) else {
                continue;
            };
            if let ModelSource::Folder { path, .. } = &mut run.experiment.model.source {
                path.clone_from(&step);
            }
            if step != base {
                bases.insert(base, step);
            }
        }
        Bases(bases)
    }

    /// What `sweep.json` lists; `None`: no run is named.
    pub(super) fn record(&self) -> Option<Value> {
        let pair = |(run, step): (&PathBuf, &PathBuf)| {
            (run.display().to_string(), json!(step.display().to_string()))
        };
        (!self.0.is_empty()).then(|| Value::Object(self.0.iter().map(pair).collect()))
    }

    /// Whether `was` is the checkpoint that `is`, a run, means; `None`: that is not settled.
    pub(super) fn says(&self, was: &Path, is: &Path) -> Option<bool> {
        self.0.get(is).map(|step| step == was)
    }

    /// The checkpoint of the same run that a run of the sweep should have begun with, where it began with another, which is returned first.
    pub(super) fn unlike<'a>(&'a self, own: &'a Experiment) -> Option<(&'a Path, &'a Path)> {
        let ModelSource::Folder { path, hub: None, .. } = &own.model.source else { return None };
        step_of(path)?;
        let step = self.0.get(path.parent()?)?;
        (step != path).then_some((path, step))
    }

    /// Notes in the checkpoints that the sweep in `output` needs them: their own run must not delete them.
    ///
    /// # Errors
    /// One that was deleted since it was chosen.
    pub(super) fn are_needed(&self, output: &Path) -> Result<(), Failure> {
        for step in self.0.values() {
            match need_checkpoint(step, output) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let message = format!("`{}` was deleted by its own run", step.display());
                    return Err(Failure::usage(message, "the same command takes a newer one"));
                }
                Err(error) => {
                    print::warn(format!("`{}` is not marked as needed: {error}", step.display()));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

/// The run whose weights an experiment begins with, if `model.path` names one.
fn base_of(experiment: &Experiment) -> Option<&Path> {
    match &experiment.model.source {
        ModelSource::Folder { path, hub: None, .. } if is_run(path) => Some(path),
        _ => None,
    }
}
