//! `annulus check`, `schema`: what can be said of an experiment without running it.

use annulus_data::DataError;
use annulus_experiment::{Experiment, Problem, parse, read_experiment};
use annulus_plan::Plan;
use annulus_simulate::plans;
use annulus_train::{Opened, TrainError};
use serde_json::json;

use crate::arguments::{File, Reading};
use crate::failure::Failure;
use crate::{Done, hub, print, shown};

pub(crate) fn check(arguments: &Reading) -> Done {
    let checked = opened(&arguments.file).and_then(|opened| {
        data_is_there(&opened.resolved.experiment)?;
        fits(&plans(&opened.here())?)?;
        Ok(opened.resolved.experiment.name)
    });
    if !arguments.json {
        print::line(&format!("{}: ok", checked?))?;
        return Ok(0);
    }
    let (code, problems) = match checked {
        Ok(_) => (0, Vec::new()),
        Err(Failure { code, problems }) => (code, problems.0),
    };
    let problems: Vec<_> = problems
        .into_iter()
        .map(|Problem { message, place, hint }| {
            let [place, hint] = [place, hint].map(|text| text.as_deref().map(shown::message));
            json!({"message": shown::message(&message), "place": place, "hint": hint})
        })
        .collect();
    print::line(&json!({"ok": code == 0, "problems": problems}).to_string())?;
    Ok(code)
}

pub(crate) fn schema(markdown: bool) -> Done {
    let schema = || format!("{:#}", annulus_experiment::schema());
    print::line(&if markdown { annulus_experiment::page() } else { schema() })?;
    Ok(0)
}

/// Refuses what `train` would refuse for its memory; what is for a described cluster is not for this machine.
pub(crate) fn fits(plans: &[Plan]) -> Result<(), Failure> {
    let mut here = plans.iter().filter(|plan| plan.experiment.mesh.cluster.is_none());
    here.find_map(Plan::misfit).map_or(Ok(()), |misfit| Err(TrainError::from(misfit).into()))
}

fn data_is_there(experiment: &Experiment) -> Result<(), Failure> {
    let Some(path) = &experiment.data.path else { return Ok(()) };
    let found = std::fs::metadata(path);
    found.map_err(|source| DataError::Read { path: path.clone(), source })?;
    annulus_train::excluded(std::slice::from_ref(path), &experiment.output)?;
    Ok(())
}

/// A file, read and resolved once.
pub(crate) fn opened(file: &File) -> Result<Opened, Failure> {
    opened_from(file, &read_experiment(&file.file)?)
}

/// The text of a file, resolved: a pipe can be read only once.
pub(crate) fn opened_from(file: &File, text: &str) -> Result<Opened, Failure> {
    let name = file.file.display().to_string();
    annulus_train::resolve(parse(&name, text, &file.replacements)?, &mut hub::bring)
}

/// The plan of the phase whose weights a run has after `step` steps.
pub(crate) fn phase_at(mut plans: Vec<Plan>, step: u64) -> Plan {
    let number = plans[0].experiment.number_at(step);
    plans.swap_remove(number)
}
