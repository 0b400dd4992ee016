//! Data that suits a plan.

use std::path::Path;

use annulus_data::Progress;
use annulus_experiment::Format;
use annulus_plan::Plan;

use crate::setup::data::{Data, Opening, open_data};
use crate::{Result, TrainError};

/// The data of `plan`, with as many batches as its steps need and only ids of the model's vocabulary.
pub(crate) fn of_data(
    plan: &Plan,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Data> {
    let data = open_data(plan, opening, progress)?;
    check_batches(plan, &data)?;
    check_vocabulary(plan, &data)?;
    Ok(data)
}

/// An error if the steps need more batches than ready-made data has, which otherwise would end the run only when the data ends.
fn check_batches(plan: &Plan, data: &Data) -> Result<()> {
    let part = plan.experiment.phase_start();
    let steps = plan.experiment.last_step().saturating_sub(part.steps.start);
    let (first, wanted) = (part.steps.start, part.batch + steps);
    let ready_made = plan.experiment.data.format == Format::Batches;
    match data.train.batches().filter(|_| ready_made && steps > 0) {
        Some(batches) if batches < wanted => Err(TrainError::configuration(
            format!("{wanted} steps, but the data has {batches} batches"),
            format!(
                "set `schedule.stop` to {} or less",
                first + batches.saturating_sub(part.batch)
            ),
        )),
        _ => Ok(()),
    }
}

/// An error if the data has an id outside the model's vocabulary, which otherwise would end the run at the step that meets it.
fn check_vocabulary(plan: &Plan, data: &Data) -> Result<()> {
    let (wanted, rows) = (data.train.vocabulary(), plan.vocabulary());
    if wanted <= rows {
        return Ok(());
    }
    let path = plan.experiment.data.path.first();
    let path = path.map_or(Path::new("the data"), |source| &source.path);
    Err(TrainError::configuration(
        format!(
            "`{}` holds the id {}, but the model has {rows} tokens",
            path.display(),
            wanted - 1
        ),
        format!("set `model.vocab_size` to {wanted} or more, or use other data"),
    ))
}
