//! `annulus check`, `schema`: checks an experiment without running it.

use annulus_experiment::{
    Experiment, Override, Problem, parse, parse_sweep, read_experiment, replacing,
};
use annulus_plan::{MemoryNeed, Plan};
use annulus_simulate::plans;
use annulus_train::{Opened, RESOLVED, TrainError, is_run};
use serde_json::json;

use crate::experiment_file::{ExperimentFile, Inspection, replaced_path};
use crate::failure::Failure;
use crate::{Done, hub, print, shown, sweep};

pub(crate) fn check(arguments: &Inspection) -> Done {
    let file = experiment_of_run(&arguments.file);
    let text = read_experiment(&file.file).map_err(Failure::from);
    let checked = text.and_then(|text| checked(&file, &text));
    if !arguments.json {
        print::line(&checked?)?;
        return Ok(0);
    }
    let (code, problems) = match checked {
        Ok(_) => (0, Vec::new()),
        Err(Failure { exit, problems }) => (exit.code(), problems.0),
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

/// Checks the text of a file, which is one run or a sweep, and summarizes it.
fn checked(file: &ExperimentFile, text: &str) -> Result<String, Failure> {
    if let Some(sweep) = parse_sweep(&file.file.display().to_string(), text, &file.replacements)? {
        return sweep::listed(&sweep);
    }
    let opened = opened_from(file, text)?;
    let (plans, note) = plans_that_fit(&opened)?;
    if let Some(note) = &note {
        print::say(note);
    }
    plans.iter().flat_map(|plan| &plan.warnings).for_each(print::warn);
    tell_left_out(&opened.resolved.experiment);
    Ok(summary(&opened.resolved.experiment.name, &plans))
}

/// Says what is left out of an experiment's data, if they are on this machine.
pub(crate) fn tell_left_out(experiment: &Experiment) {
    if let Ok(Some(left_out)) = annulus_train::left_out_of(experiment) {
        print::say(&left_out);
    }
}

/// The plans of an experiment, checked against this machine's memory, its weights and its data, with the note on
/// its data. For an experiment that names a cluster, memory is that of the cluster's devices, weights are not checked, and data only if they
/// are here.
///
/// # Errors
/// Whatever `train` would refuse, and what does not fit on the cluster that the file names.
pub(crate) fn plans_that_fit(opened: &Opened) -> Result<(Vec<Plan>, Option<String>), Failure> {
    let plans = plans(&opened.here())?;
    annulus_train::fits_here(&plans)?;
    let elsewhere = opened.resolved.experiment.mesh.cluster.is_some();
    if !elsewhere {
        annulus_train::weights_fit(&plans)?;
    }
    let note = data_fits(opened, &plans, elsewhere)?;
    Ok((plans, note))
}

/// Checks plans against their data, and returns a note of how many sequences there are, or of what is not checked. With `may_be_missing`,
/// data may be missing on this machine.
pub(crate) fn data_fits(
    opened: &Opened,
    plans: &[Plan],
    may_be_missing: bool,
) -> Result<Option<String>, Failure> {
    if let Some(absent) = absent(&opened.resolved.experiment).filter(|_| may_be_missing) {
        return Ok(Some(format!("note: {absent}: sequences are not checked against it")));
    }
    let unread = "note: data of more than 1 MiB is not read here; `train` reports errors in it";
    Ok(match annulus_train::data_fits(plans, opened.tokenizer.as_deref())? {
        None => Some(unread.to_owned()),
        Some(epochs) => Some(epochs.join("\n")).filter(|epochs| !epochs.is_empty()),
    })
}

/// The error message if the experiment's data are not on this machine.
fn absent(experiment: &Experiment) -> Option<String> {
    if experiment.data.format.is_made_up() {
        return None;
    }
    match annulus_train::texts(experiment).err()? {
        TrainError::Config(problems) => Some(problems.0.into_iter().next()?.message),
        error => Some(error.to_string()),
    }
}

/// The memory of the phase that needs the most, and how much there is; then what the phase that offloads most offloads. Of the devices and
/// nodes of the cluster that the experiment names, else of this machine.
pub(crate) fn fullest(plans: &[Plan]) -> [Option<MemoryNeed>; 2] {
    let needs: Vec<_> = plans.iter().map(Plan::needs_of_file).collect();
    let most = |at: usize| needs.iter().filter_map(|need| need[at]).max_by_key(|need| need.needed);
    [most(0), most(1)]
}

/// The line of an experiment without errors, with the memory that it needs.
fn summary(name: &str, plans: &[Plan]) -> String {
    let needs = fullest(plans).into_iter().flatten();
    let needs = needs.fold(String::new(), |all, need| format!("{all}; {need}"));
    let last = plans.last().and_then(Plan::extension);
    let longer = last.map_or_else(String::new, |how| format!("\n  extend: {how}"));
    format!("{name}: ok{needs}{longer}")
}

pub(crate) fn schema(markdown: bool) -> Done {
    let schema = || format!("{:#}", annulus_experiment::schema());
    print::line(&if markdown { annulus_experiment::page() } else { schema() })?;
    Ok(0)
}

/// Reads and resolves an experiment.
pub(crate) fn opened(file: &ExperimentFile) -> Result<Opened, Failure> {
    let file = experiment_of_run(file);
    opened_from(&file, &read_experiment(&file.file)?)
}

/// Replaces a run's folder by the experiment in it, with `output` set to that folder, which may have been moved.
pub(crate) fn experiment_of_run(file: &ExperimentFile) -> ExperimentFile {
    if !is_run(&file.file) {
        return file.clone();
    }
    let output = replaced_path("output", &file.file);
    let resolved = file.file.join(RESOLVED);
    // A file that cannot be read is reported when it is.
    let text = read_experiment(&resolved).unwrap_or_default();
    let own = replacing(&text, &file.replacements);
    let replacements: Vec<Override> = std::iter::once(output).chain(own).collect();
    ExperimentFile { replacements, file: resolved }
}

/// Resolves the text of a file that has been read already, since a pipe can be read only once.
pub(crate) fn opened_from(file: &ExperimentFile, text: &str) -> Result<Opened, Failure> {
    let name = file.file.display().to_string();
    annulus_train::resolve(parse(&name, text, &file.replacements)?, &mut hub::description)
}

/// The plan of the phase whose weights a run has after `step` steps.
pub(crate) fn phase_at(mut plans: Vec<Plan>, step: u64) -> Plan {
    let number = plans[0].experiment.phase_index_at(step);
    plans.swap_remove(number)
}
