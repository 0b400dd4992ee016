//! Text that a run would hold out although what it begins with was trained on it.

use std::path::Path;

use annulus_experiment::{Experiment, ModelSource, WeightsFrom};

use crate::checkpoint::State;
use crate::setup::texts::by_source;

/// A warning if the run of the checkpoint that `experiment` has its model from was trained on text that is held out now.
pub(super) fn by_model(experiment: &Experiment) -> Option<String> {
    match &experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => {
            by_checkpoint(experiment, path)
        }
        _ => None,
    }
}

/// The same of a checkpoint with which the run begins; `None` also for a folder that is no checkpoint of a run.
pub(super) fn by_checkpoint(experiment: &Experiment, checkpoint: &Path) -> Option<String> {
    let trained = State::read(checkpoint).ok()?.experiment().ok()?;
    let (before, now) = (by_source(&trained), by_source(experiment));
    let path = now.iter().find(|now| before.iter().any(|before| holds_out_more(before, now)))?;
    Some(format!(
        "`{}` was trained on text of `{}` that is held out here: validation losses are too low; hold out no more than that run did \
         (`data.evaluate` of {} sequences of {} tokens, `data.pack: {}`), or evaluate with other text (`evaluation.path`)",
        checkpoint.display(),
        path.data.path.first()?.path.display(),
        trained.data.evaluate,
        trained.longest(),
        trained.data.pack.word(),
    ))
}

/// Whether `now` holds out text of the same path that `before` may have been trained on; both are of one source. What is packed otherwise is
/// held out otherwise.
fn holds_out_more(before: &Experiment, now: &Experiment) -> bool {
    let place = |of: &Experiment| of.data.path.first().map(|source| source.path.clone());
    let (Some(old), Some(new)) = (place(before), place(now)) else { return false };
    let is_same = old == new
        || old.canonicalize().ok().zip(new.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    let is_alike = (before.data.pack, before.data.longer) == (now.data.pack, now.data.longer);
    is_same && now.data.evaluate > 0 && (!is_alike || now.held_out() > before.held_out())
}
