//! What a run came to, for tables of many runs.

use std::path::{Path, PathBuf};

use annulus_experiment::Experiment;

use crate::Result;
use crate::checkpoint::last_checkpoint;
use crate::run::compare::LOSS;
use crate::run::lines::EVALUATION;
use crate::run::logged::{Logged, median};
use crate::run::manifest::FINISHED;

/// Tokens per second of a step that was logged.
const SPEED: &str = "speed/tokens_per_second";

/// What a run came to.
#[derive(Clone, Debug)]
pub struct CameTo {
    /// The folder.
    pub folder: PathBuf,
    /// Its resolved experiment.
    pub experiment: Experiment,
    /// Whether its last step is logged, evaluated where it holds anything out, and saved: what training it again would say, too.
    pub is_finished: bool,
    /// The training loss that was logged last, in nats per token; `None`: none was, or it is not finite.
    pub train_loss: Option<f64>,
    /// The same of held-out text.
    pub evaluation_loss: Option<f64>,
    /// The median over logged steps.
    pub tokens_per_second: Option<f64>,
}

/// Reads what the run in `folder` came to; it may go on meanwhile.
///
/// # Errors
/// A folder that is no run's, or cannot be read.
pub fn came_to(folder: &Path) -> Result<CameTo> {
    let read = Logged::lenient(folder)?;
    let last = |tag| read.numbers(tag).last().map(|(_, value)| *value);
    let speeds = read.numbers(SPEED).into_iter().map(|(_, value)| value);
    Ok(CameTo {
        folder: folder.to_owned(),
        is_finished: is_finished(folder, &read),
        train_loss: last(LOSS).filter(|loss| loss.is_finite()),
        evaluation_loss: last(EVALUATION).filter(|loss| loss.is_finite()),
        tokens_per_second: median(speeds),
        experiment: read.experiment,
    })
}

/// A run that was killed between its last checkpoint and the last line of its manifest is finished, too; one whose checkpoints were
/// removed afterwards as well.
fn is_finished(folder: &Path, run: &Logged) -> bool {
    let (experiment, last) = (&run.experiment, run.experiment.last_step());
    let Some(line) = run.lines.iter().rev().find(|line| line.step == last) else { return false };
    if run.ending() == Some(FINISHED) {
        return true;
    }
    let is_saved = last_checkpoint(folder).is_some_and(|step| step >= last);
    is_saved && (experiment.data.evaluate == 0 || line.has_evaluation())
}
