//! The results of a run, for tables of many runs.

use std::path::{Path, PathBuf};

use annulus_experiment::Experiment;
use annulus_experiment::tags::{EVALUATE_LOSS, SPEED_TOKENS_PER_SECOND, TRAIN_LOSS};

use crate::Result;
use crate::checkpoint::last_checkpoint;
use crate::finished::logged::{Logged, median};
use crate::folder::manifest::FINISHED;

/// The results of one run.
#[derive(Clone, Debug)]
pub struct RunSummary {
    /// The run's folder.
    pub folder: PathBuf,
    /// The run's resolved experiment.
    pub experiment: Experiment,
    /// The fingerprint of its data; `None`: it has no manifest.
    pub data: Option<String>,
    /// The fingerprint of the text that it holds out, in sequences as they are evaluated; `None`: it holds out nothing, or has no manifest
    /// that says it.
    pub held_out: Option<String>,
    /// Whether it began with the checkpoint of another run, by `--from`.
    pub is_fork: bool,
    /// Whether its last step is logged, evaluated where text is held out, and saved: training it again would then do nothing.
    pub is_finished: bool,
    /// The training loss that was logged last, in nats per token; `None`: none was, or it is not finite.
    pub train_loss: Option<f64>,
    /// The loss on held-out text that was logged last, in nats per token; `None`: none was, or it is not finite.
    pub evaluation_loss: Option<f64>,
    /// Tokens per second: the median over logged steps.
    pub tokens_per_second: Option<f64>,
}

/// Reads the results of the run in `folder`, which may still be running.
///
/// # Errors
/// A folder that is no run's, or cannot be read, and the first damaged line of its metrics.
pub fn run_summary(folder: &Path) -> Result<RunSummary> {
    let read = Logged::lenient(folder)?;
    let last = |tag| read.numbers(tag).last().map(|(_, value)| *value);
    let speeds = read.numbers(SPEED_TOKENS_PER_SECOND).into_iter().map(|(_, value)| value);
    Ok(RunSummary {
        folder: folder.to_owned(),
        is_finished: is_finished(folder, &read),
        train_loss: last(TRAIN_LOSS).filter(|loss| loss.is_finite()),
        evaluation_loss: last(EVALUATE_LOSS).filter(|loss| loss.is_finite()),
        tokens_per_second: median(speeds),
        held_out: read.manifest.as_ref().and_then(|manifest| manifest.held_out.clone()),
        is_fork: read.manifest.as_ref().is_some_and(|manifest| manifest.fork.is_some()),
        data: read.manifest.map(|manifest| manifest.data),
        experiment: read.experiment,
    })
}

/// Whether a run is finished; also if it was killed between its last checkpoint and the last line of its manifest, or its checkpoints were
/// removed afterwards.
fn is_finished(folder: &Path, run: &Logged) -> bool {
    let (experiment, last) = (&run.experiment, run.experiment.last_step());
    let Some(line) = run.lines.iter().rev().find(|line| line.step == last) else { return false };
    if run.ending() == Some(FINISHED) {
        return true;
    }
    let is_saved = last_checkpoint(folder).is_some_and(|step| step >= last);
    is_saved && (experiment.data.evaluate == 0 || line.has_evaluation())
}
