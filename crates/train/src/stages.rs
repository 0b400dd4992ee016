//! A run of several stages: one run after another in the same folder, each going on from the checkpoint that the one before ended
//! with.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use annulus_experiment::Plan;

use crate::checkpoint::newest;
use crate::prepare::{examined, interruptible};
use crate::run::run_part;
use crate::sink::{Notice, Sink, Value};
use crate::{Ending, Given, Outcome, Result, TrainError, run};

/// Trains `plans`, those of [`annulus_experiment::Experiment::parts`] in order, to their end, from where their folder says it is. All
/// are held to the machine and to their data before the first step.
///
/// # Errors
/// What is wrong with any of them, or ends a run.
pub fn run_stages(plans: &[Plan], given: Given) -> Result<Outcome> {
    let [plan] = plans else { return several(plans, given) };
    run(plan, given)
}

fn several(plans: &[Plan], given: Given) -> Result<Outcome> {
    let Given { yaml, stop, mut console, cores, wrap, processor } = given;
    let all = plans.to_vec();
    let work = move |progress: &mut dyn FnMut(u64, u64)| data_of_all(&all, progress);
    // Stopped meanwhile, there is none, and the first run says so.
    let fingerprint = interruptible(&stop, console.as_mut(), work)?;
    let console = Arc::new(Mutex::new(console));
    let mut whole: Option<Outcome> = None;
    for plan in open(plans)? {
        let given = Given {
            yaml: yaml.clone(),
            stop: stop.clone(),
            console: Box::new(Shared(console.clone())),
            cores,
            wrap: wrap.clone(),
            processor: processor.clone(),
        };
        let outcome = run_part(plan, given, fingerprint.clone())?;
        let ended = outcome.ending == Ending::Preempted || stop.load(Ordering::Relaxed);
        whole = Some(match whole {
            None => outcome,
            Some(before) => before.followed_by(outcome),
        });
        if ended || plan.experiment.last_step() < plan.experiment.part().steps.end {
            break;
        }
    }
    whole.ok_or_else(|| TrainError::Internal("a run without stages".into()))
}

/// The stages that are not behind the newest checkpoint. One that it ends may still owe an evaluation.
fn open(plans: &[Plan]) -> Result<&[Plan]> {
    let Some(last) = plans.last() else { return Ok(plans) };
    let output = &last.experiment.output;
    let found = if output.is_dir() { newest(output)?.0 } else { None };
    let finished = found.map_or(0, |found| found.state.step);
    let ended = plans.iter().take_while(|plan| plan.experiment.part().steps.end < finished);
    Ok(&plans[ended.count().min(plans.len() - 1)..])
}

/// Opens the data of every stage; gives their fingerprint together.
fn data_of_all(plans: &[Plan], progress: &mut dyn FnMut(u64, u64)) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for plan in plans {
        hasher.update(examined(plan, progress)?.train.fingerprint().as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

impl Outcome {
    /// What this stage and the next came to together.
    fn followed_by(self, after: Outcome) -> Outcome {
        let trained = !self.losses.is_empty() || self.resumed_from.is_some();
        let ending = match after.ending {
            // It had been finished before, but what it goes on from had not.
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
        Outcome { ending, resumed_from, losses, warnings, ..after }
    }
}

/// One console for all stages.
struct Shared(Arc<Mutex<Box<dyn Sink + Send>>>);

impl Sink for Shared {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(step, values)
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).notice(notice);
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}
