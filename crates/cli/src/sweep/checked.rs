//! Checks all runs of a sweep before any begins: that each can be run, and how much memory it takes.

use std::collections::BTreeSet;

use annulus_experiment::{Experiment, Problem, Sweep, SweptRun};
use annulus_plan::Plan;
use annulus_text::{count, size};

use super::room::{AtOnce, Needs};
use crate::failure::Failure;
use crate::{check, hub, print};

/// The results of checking a sweep without errors.
pub(super) struct Checked {
    /// The resolved experiment of each combination of values, with the seed of its first run.
    resolved: Vec<Experiment>,
    /// The resources that each combination takes.
    needs: Vec<Needs>,
    /// Warnings, each once.
    pub(super) warnings: BTreeSet<String>,
}

impl Checked {
    /// The resolved experiment of a run.
    pub(super) fn resolved(&self, run: &SweptRun) -> Experiment {
        Experiment { seed: run.experiment.seed, ..self.resolved[run.point].clone() }
    }

    /// How many runs go on at the same time.
    pub(super) fn at_once(&self, sweep: &Sweep) -> Result<AtOnce, Failure> {
        let needs: Vec<Needs> = sweep.runs.iter().map(|run| self.needs[run.point]).collect();
        AtOnce::of(sweep, &needs)
    }
}

/// Checks every combination of values; seeds do not matter here.
///
/// # Errors
/// All errors, each once and with the first run that has it, and the exit code of the first.
pub(super) fn checked(sweep: &Sweep) -> Result<Checked, Failure> {
    let mut all = Checked { resolved: Vec::new(), needs: Vec::new(), warnings: BTreeSet::new() };
    let (mut wrong, mut notes) = (Vec::new(), BTreeSet::new());
    let mut exit = None;
    let points = points(sweep);
    for run in &points {
        match plans_of(run) {
            Ok((plans, note)) => {
                // Runs on the same data have the same notes.
                if let Some(note) = note.filter(|note| !notes.contains(note)) {
                    print::say(&note);
                    notes.insert(note);
                }
                all.warnings
                    .extend(plans.iter().flat_map(|plan| &plan.warnings).map(ToString::to_string));
                all.needs.push(Needs::of(&plans));
                all.resolved.extend(plans.first().map(|plan| plan.experiment.written().clone()));
            }
            Err(failure) => {
                exit.get_or_insert(failure.exit);
                wrong.push((failure.problems, *run));
            }
        }
    }
    match exit {
        Some(exit) => Err(Failure { exit, problems: Sweep::problems(wrong, points.len()) }),
        None => Ok(all),
    }
}

/// The first run of every combination.
fn points(sweep: &Sweep) -> Vec<&SweptRun> {
    let mut points: Vec<&SweptRun> = Vec::new();
    for run in &sweep.runs {
        if points.last().is_none_or(|last| last.point != run.point) {
            points.push(run);
        }
    }
    points
}

/// The plans of a run, checked as `annulus check` does, and the note of what is not checked.
fn plans_of(run: &SweptRun) -> Result<(Vec<Plan>, Option<String>), Failure> {
    let opened = annulus_train::resolve(run.experiment.clone(), &mut hub::description)?;
    let (plans, note) = check::plans_that_fit(&opened)?;
    if plans.is_empty() {
        return Err(Failure::from(annulus_experiment::Problems::from(Problem::new("no phase"))));
    }
    Ok((plans, note))
}

/// The key by which `train` would refuse to resume a run in its folder, with both values.
pub(super) fn refused(run: &SweptRun) -> Result<Option<String>, Failure> {
    let (plans, _) = plans_of(run)?;
    let unlike = plans.first().map(annulus_train::unlike_checkpoint);
    Ok(unlike.unwrap_or_default().into_iter().next())
}

/// The output of `annulus check` for a sweep without errors: how many runs go on at the same time, and a line for each combination.
pub(crate) fn listed(sweep: &Sweep) -> Result<String, Failure> {
    let all = checked(sweep)?;
    let at_once = all.at_once(sweep)?;
    all.warnings.iter().for_each(print::warn);
    let runs = count(sweep.runs.len(), "run");
    let mut lines = vec![format!("{}: ok; a sweep of {runs}, {at_once}", sweep.name)];
    let line = |run: &&SweptRun| {
        let needs = all.needs[run.point]
            .bytes
            .map_or_else(String::new, |bytes| format!("  {}", size(bytes)));
        format!("  {}{needs}", run.name)
    };
    lines.extend(points(sweep).iter().map(line));
    let seeds = sweep.runs.len() / points(sweep).len().max(1);
    if seeds > 1 {
        lines.push(format!("each with {seeds} seeds"));
    }
    Ok(lines.join("\n"))
}
