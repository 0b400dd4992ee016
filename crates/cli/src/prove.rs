//! `annulus prove`: the schedules of an experiment, checked before anything runs.

use annulus_experiment::{Plan, Proving};

use crate::arguments::Reading;
use crate::failure::EXPECT;
use crate::{Done, check, print};

pub(crate) fn run(arguments: &Reading) -> Done {
    let (experiment, vocabulary) = check::experiment(&arguments.file)?;
    let mut holds = true;
    // A strategy that is left open is chosen once for all stages.
    let parts = if experiment.attention.is_open() {
        Plan::all(experiment, vocabulary)?.into_iter().map(|plan| plan.experiment).collect()
    } else {
        experiment.parts()
    };
    for part in parts {
        let proving = Proving::of(part, vocabulary)?;
        let shown = if arguments.json { proving.to_json().to_string() } else { proving.to_text() };
        print::line(&shown)?;
        holds &= proving.holds();
    }
    Ok(if holds { 0 } else { EXPECT })
}
