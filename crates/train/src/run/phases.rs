//! A run of several phases: one after another in the same folder, each beginning from the last checkpoint of the one before.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use annulus_comm::World;
use annulus_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::checkpoint::newest;
use crate::run::attempt::run_phase;
use crate::run::processes::of_first;
use crate::run::settings::Settings;
use crate::setup::shared::{once, unreached};
use crate::sink::{Notice, Sink, Value};
use crate::{Ending, Outcome, Result, RunOptions, TrainError, run};

/// One phase of a run, and the plans of all of its phases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase<'a> {
    pub(crate) plan: &'a Plan,
    /// Empty for a run without phases.
    pub(crate) stages: &'a [Plan],
}

/// Trains `plans`, those of [`annulus_experiment::Experiment::phases`] in order, to their end, from the step that their folder has reached.
/// All are checked against the machine and their data before the first step. Messages for a person go to `console`.
///
/// # Errors
/// No plan, what is wrong with any of the phases, or ends one.
pub fn run_phases(
    plans: &[Plan],
    options: RunOptions,
    console: &mut (dyn Sink + Send),
) -> Result<Outcome> {
    match plans {
        [] => Err(once(
            &options.world,
            TrainError::configuration(
                "no plan to train",
                "give the plans of all phases, or the one of a run without phases",
            ),
        )),
        [plan] => run(plan, options, console),
        plans => several(plans, &options, console),
    }
}

fn several(
    plans: &[Plan],
    options: &RunOptions,
    console: &mut (dyn Sink + Send),
) -> Result<Outcome> {
    if options.fork.is_some() {
        return Err(TrainError::configuration(
            "a run of several phases cannot begin in the middle of another",
            "leave `--from` out, and set `model.path` to the checkpoint",
        ));
    }
    let warnings = BTreeSet::new();
    let mut console = Unrepeated { console, warnings, has_failed: false };
    let mut whole: Option<Outcome> = None;
    let (first, plans) = agreed(plans, &options.world)?;
    let mut open = plans[first..].iter().peekable();
    while let Some(plan) = open.next() {
        let phase = Phase { plan, stages: &plans };
        let mut outcome = run_phase(phase, options.clone(), &mut console)?;
        let is_cut = plan.experiment.last_step() < plan.experiment.phase_start().steps.end;
        // A phase that reached its end does not finish a run that was asked to stop meanwhile.
        let has_next = !is_cut && open.peek().is_some();
        if has_next && any_stops(options, outcome.ending)? {
            outcome.ending = Ending::Preempted;
        }
        let ending = outcome.ending;
        whole = Some(match whole {
            None => outcome,
            Some(before) => before.followed_by(outcome),
        });
        if ending == Ending::Preempted || is_cut {
            break;
        }
    }
    whole.ok_or_else(|| TrainError::Internal("a run without phases".into()))
}

/// Whether any process was asked to stop, or ended its phase because of that: then all end, so that none begins the next phase alone.
fn any_stops(options: &RunOptions, ending: Ending) -> Result<bool> {
    let own = options.stop.load(Ordering::Relaxed) || ending == Ending::Preempted;
    let said = options.world.gather(&[u8::from(own)]).map_err(unreached)?;
    Ok(said.iter().any(|stops| *stops != [0]))
}

/// What process 0 decides for all.
#[derive(Serialize, Deserialize)]
struct Decided {
    /// The number of the phase to begin with: other hosts may not list the newest checkpoint yet, as file systems over a network cache
    /// folders.
    first: usize,
    /// The settings of every phase, which are chosen by the memory of the first host.
    settings: Vec<Settings>,
}

/// The number of the phase to begin with and the plans of all phases, as process 0 has them.
fn agreed(plans: &[Plan], world: &World) -> Result<(usize, Vec<Plan>)> {
    let decide =
        || Ok(Decided { first: first(plans)?, settings: plans.iter().map(Settings::of).collect() });
    let Decided { first, settings } = of_first(world, decide)?;
    let settled = |(plan, own): (&Plan, &Settings)| Ok(plan.clone().with(own.settled()?));
    let plans: Vec<Plan> = plans.iter().zip(&settings).map(settled).collect::<Result<_>>()?;
    match plans.get(first) {
        Some(_) => Ok((first, plans)),
        None => Err(TrainError::Internal(format!("phase {first} of {}", plans.len()))),
    }
}

/// The number of the first phase that the newest checkpoint has not finished; a phase that it ends counts, since it may lack its
/// evaluation.
fn first(plans: &[Plan]) -> Result<usize> {
    let Some(last) = plans.last() else { return Ok(0) };
    let output = &last.experiment.output;
    let found = if output.is_dir() { newest(output)?.0 } else { None };
    let finished = found.map_or(0, |found| found.state.step);
    Ok(last.experiment.phase_index_at(finished))
}

impl Outcome {
    /// The outcome of this phase and the next together.
    fn followed_by(self, after: Outcome) -> Outcome {
        let trained = !self.losses.is_empty() || self.resumed_from.is_some();
        let ending = match after.ending {
            // The next phase had been finished before, but this one had not.
            Ending::AlreadyFinished if trained => self.ending,
            ending => ending,
        };
        let resumed_from =
            if self.losses.is_empty() { after.resumed_from } else { self.resumed_from };
        let losses = [self.losses, after.losses].concat();
        let mut warnings = self.warnings;
        for warning in after.warnings {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let step = after.step.max(self.step);
        let checkpoint = after.checkpoint.or(self.checkpoint);
        Outcome { ending, step, resumed_from, losses, checkpoint, warnings, ..after }
    }
}

/// The name of the phase that a plan is, if it is one.
pub(crate) fn phase_name(plan: &Plan) -> Option<String> {
    plan.experiment.phase().map(|stage| stage.name.clone())
}

/// One console for all phases, which repeats no warning and is told nothing more once it has failed.
struct Unrepeated<'a> {
    console: &'a mut (dyn Sink + Send),
    warnings: BTreeSet<String>,
    has_failed: bool,
}

impl Sink for Unrepeated<'_> {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        if self.has_failed {
            return Ok(());
        }
        self.console.record(step, values).inspect_err(|_| self.has_failed = true)
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        let is_new = match notice {
            Notice::Warning(text) => self.warnings.insert((*text).to_owned()),
            _ => true,
        };
        if is_new && !self.has_failed {
            self.console.notice(notice);
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        if self.has_failed {
            return Ok(());
        }
        self.console.flush().inspect_err(|_| self.has_failed = true)
    }
}
