//! A run over several processes: process 0 leads, and before the first step all are checked to be alike.
//!
//! Process 0 resolves the experiment, settles what it leaves open, locks the run's folder and finds the checkpoint. The others are told
//! which, read data and weights for their own ranks, from the same folders or from copies on their hosts, and prove by hashes that they
//! have read what process 0 has.

use std::sync::Arc;

use annulus_comm::{Error as CommError, World};
use annulus_experiment::{KeyDifference, write_config};
use annulus_machine::Core;
use annulus_model::Weights;
use annulus_plan::Plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::{Found, identity};
use crate::folder::manifest::{Fork, program};
use crate::run::attempt::{Attempt, Led, prepared};
use crate::run::options::RunOptions;
use crate::run::outcome::{Ending, Outcome};
use crate::run::phases::Phase;
use crate::run::prepare::{ResumeFrom, Work};
use crate::run::settings::Settings;
use crate::setup::shared::{of_another, unreached};
use crate::setup::weights::InitialWeights;
use crate::sink::Sink;
use crate::{Exit, Result, Setup, TrainError};

/// What process 0 tells the others before the first step.
#[derive(Serialize, Deserialize)]
enum Word {
    /// The run begins, from the checkpoint of `fork` if there is one, or resumes from the checkpoint of `step`.
    Begin { step: Option<u64>, fork: Option<Fork> },
    /// The run had been finished before, at `step`.
    Done { step: u64 },
    /// Process 0 was asked to stop.
    Stopped,
    /// The run cannot begin; process 0 reports why.
    Failed,
}

/// What must be the same in every process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Names and values; differences are looked for in this order and reported by these names.
    alike: Vec<(String, String)>,
}

/// What a process says before the first step.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// The process can begin, with these facts.
    Has(Facts),
    /// The process was asked to stop.
    Stopped,
    /// The process cannot begin: why, the way out, and how it ends.
    Cannot(String, Option<String>, Exit),
}

impl Said {
    pub(crate) fn of(facts: &Result<Facts>) -> Said {
        match facts {
            Ok(facts) => Said::Has(facts.clone()),
            Err(error) => Said::cannot(error),
        }
    }

    fn cannot(error: &TrainError) -> Said {
        let why = error.to_string();
        let why = why.strip_prefix("error: ").unwrap_or(&why);
        Said::Cannot(why.to_owned(), error.hint(), error.exit())
    }
}

/// Tells the other processes what process 0 has found.
pub(crate) fn lead(world: &World, led: &Result<Led>) -> Result<()> {
    let word = match led {
        Err(_) => Word::Failed,
        Ok(Led { prepared: None, .. }) => Word::Stopped,
        Ok(Led { prepared: Some(prepared), fork, .. }) => {
            let step = prepared.found.as_ref().map(|found| found.state.step);
            match &prepared.work {
                None => Word::Done { step: step.unwrap_or_default() },
                Some(work) => {
                    let fork = fork.as_ref().filter(|_| work.begins);
                    Word::Begin { step, fork: fork.map(|fork| fork.at(work.start.step)) }
                }
            }
        }
    };
    exchange(world, Some(&word)).map(drop)
}

/// The run on a process other than process 0.
pub(crate) fn follow(
    phase: Phase<'_>,
    mut options: RunOptions,
    console: &mut dyn Sink,
) -> Result<Outcome> {
    let plan = phase.plan;
    let folder = &plan.experiment.output;
    let nothing = Outcome::of_another(folder);
    let words = exchange::<Word>(&options.world, None)?;
    let (step, fork) = match words.into_iter().next().flatten() {
        Some(Word::Begin { step, fork }) => (step, fork),
        Some(Word::Done { step }) => {
            return Ok(Outcome { ending: Ending::AlreadyFinished, step, ..nothing });
        }
        Some(Word::Stopped) => return Ok(nothing),
        Some(Word::Failed) | None => return Err(CommError::Ended { rank: 0 }.into()),
    };
    options.fork = fork;
    options.world.note("opening data and weights");
    let opened = open(phase, step, &mut options, console);
    // If this process cannot begin, it says so to all, and they end too.
    let facts = match &opened {
        Ok((setup, found, work)) => Said::of(&Facts::of(setup, plan, found.as_ref(), work)),
        Err(TrainError::Comm(CommError::Stopped)) => Said::Stopped,
        Err(error) => Said::cannot(error),
    };
    let agreed = match agree(&options.world, &facts) {
        Ok(false) => return Ok(nothing),
        // What this process cannot do all know by now, and say alike whose fault it is.
        Err(error @ TrainError::InProcess { .. }) => return Err(error),
        agreed => agreed,
    };
    let (setup, _, work) = opened?;
    agreed?;
    setup.join()?;
    let attempt = Attempt::new(plan, &setup, &options, work, None)?;
    let (ending, step, _) = attempt.run()?;
    Ok(Outcome { ending, step, ..nothing })
}

/// Opens data and weights of the run that process 0 resumes from `step`.
fn open(
    phase: Phase<'_>,
    step: Option<u64>,
    options: &mut RunOptions,
    console: &mut dyn Sink,
) -> Result<(Arc<Setup>, Option<Found>, Work)> {
    let setup = Arc::new(options.setup(phase.plan)?);
    let prepared = prepared(phase, &setup, ResumeFrom::Named(step), options, console)?;
    let prepared = prepared.ok_or(TrainError::Comm(CommError::Stopped))?;
    let work = prepared.work.ok_or_else(|| {
        TrainError::Internal("process 0 resumes a run that is finished".to_owned())
    })?;
    options.record(&setup, &phase.plan.experiment.output)?;
    Ok((setup, prepared.found, work))
}

/// An error unless the facts of all processes equal those of process 0; `own` is this process's word. Returns whether the run begins: it
/// does not if a process was asked to stop.
pub(crate) fn agree(world: &World, own: &Said) -> Result<bool> {
    let all: Vec<Option<Said>> = exchange(world, Some(own))?;
    if all.iter().any(|said| matches!(said, Some(Said::Stopped))) {
        return Ok(false);
    }
    let mut all = all.into_iter();
    let Some(Some(Said::Has(first))) = all.next() else {
        return Err(CommError::Ended { rank: 0 }.into());
    };
    for (index, said) in all.enumerate() {
        let process = world.process_on_host(index + 1);
        let cannot = |why, hint, exit| TrainError::InProcess {
            message: format!("{process} cannot begin: {why}"),
            hint,
            exit,
        };
        let facts = match said {
            Some(Said::Has(facts)) => facts,
            Some(Said::Cannot(why, hint, exit)) => return Err(cannot(why, hint, exit)),
            Some(Said::Stopped) | None => {
                return Err(cannot("it said nothing".to_owned(), None, Exit::Internal));
            }
        };
        if let Some(difference) = first.difference(&facts) {
            let (what, here, there) = (&difference.key, difference.is(), difference.was());
            let first = world.process_on_host(0);
            return Err(TrainError::configuration(
                format!("processes differ in {what}: `{here}` in {first}, `{there}` in {process}"),
                "all must run the same program on the same files, and on the same kind of device",
            ));
        }
    }
    Ok(true)
}

impl Facts {
    /// The facts of a process that has opened everything it needs.
    pub(crate) fn of(
        setup: &Setup,
        plan: &Plan,
        found: Option<&Found>,
        work: &Work,
    ) -> Result<Facts> {
        let Work { fingerprint, start, weights, .. } = work;
        let checkpoint = found.map_or_else(|| Ok("none".to_owned()), Found::hash)?;
        let phase = plan.experiment.phase().map_or("the only one", |phase| phase.name.as_str());
        let facts = Facts::here(&setup.processes, setup.core)
            .and("what they compute on", setup.computes_on()?)
            .and("the phase", phase)
            .and("the settings", Settings::of(plan).to_string())
            .and_plan(plan)
            .and("the data", fingerprint)
            .and("the step", start.step.to_string())
            .and("the checkpoint", checkpoint)
            .and("the weights", weights);
        Ok(facts)
    }

    /// The facts of every process, which computes as `core` says.
    fn here(world: &World, core: Core) -> Facts {
        let library = world.facts().map_or_else(String::new, |facts| facts.library.clone());
        Facts { alike: Vec::new() }
            .and("the program", program())
            .and("the library of MPI", library)
            .and("the vector instructions", core.instructions.word())
    }

    fn and(mut self, what: &str, value: impl Into<String>) -> Facts {
        self.alike.push((what.to_owned(), value.into()));
        self
    }

    /// These facts, and those of a plan and its model, of which the experiment may only say the folder.
    fn and_plan(self, plan: &Plan) -> Facts {
        let config = write_config(&plan.model, plan.experiment.model.dtype);
        let keys: Map<String, Value> = serde_json::from_str(&config).unwrap_or_default();
        let of_key = |facts: Facts, (key, value): (String, Value)| {
            facts.and(&format!("the model's `{key}`"), value.to_string())
        };
        keys.into_iter().fold(self.and("the plan", hashed(plan)), of_key)
    }

    /// The first fact that differs from that of `other`, whose value it was.
    fn difference(&self, other: &Facts) -> Option<KeyDifference> {
        let [was, is] =
            [other, self].map(|facts| facts.alike.iter().map(|(what, value)| (what, value)));
        KeyDifference::between(was, is).into_iter().next()
    }
}

/// The hash of a plan's experiment; of one of several phases, of all of them and of what is settled for this one.
fn hashed(plan: &Plan) -> String {
    let texts = [identity::resolved_text(plan), plan.experiment.to_yaml()];
    blake3::hash(texts.concat().as_bytes()).to_hex().to_string()
}

/// An error unless the program of every process and, where given, its plan, its weights and whatever else it has `read` equal those of
/// process 0. What was read has a name, and bytes to compare.
///
/// # Errors
/// The first difference, in every process; a process that is late or gone.
pub fn check_processes_agree(
    world: &World,
    plan: Option<&Plan>,
    weights: Option<&Weights>,
    read: &[(&str, Vec<u8>)],
) -> Result<()> {
    if world.processes() == 1 {
        return Ok(());
    }
    let core = plan.map_or_else(Core::here, |plan| plan.experiment.host.core);
    let mut facts = Facts::here(world, core);
    if let Some(plan) = plan {
        facts = facts.and_plan(plan);
    }
    if let Some(weights) = weights {
        facts = facts.and("the weights", InitialWeights::from(weights.clone()).hash()?);
    }
    for (what, bytes) in read {
        facts = facts.and(what, blake3::hash(bytes).to_hex().to_string());
    }
    agree(world, &Said::Has(facts)).map(drop)
}

/// What process 0 makes, in every process; if it cannot make it, the others get an error that it has ended.
pub(super) fn of_first<T: Serialize + DeserializeOwned>(
    world: &World,
    make: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if world.process() > 0 {
        let said = exchange(world, None)?;
        return said.into_iter().next().flatten().ok_or_else(of_another);
    }
    let made = make();
    let told = exchange(world, made.as_ref().ok());
    // The error that is reported is that of `make`, not that the others could not be told.
    let made = made?;
    told.map(|_| made)
}

/// Exchanges what every process says; returns it by process.
fn exchange<T: Serialize + DeserializeOwned>(
    world: &World,
    own: Option<&T>,
) -> Result<Vec<Option<T>>> {
    let unreadable = |error: serde_json::Error| TrainError::Internal(error.to_string());
    let own = serde_json::to_vec(&own).map_err(unreadable)?;
    let all = world.gather(&own).map_err(unreached)?;
    let other = |process| {
        let message = format!("{} says what this one does not ask", world.process_on_host(process));
        let hint = "start the same command of the same program in all processes";
        TrainError::configuration(message, hint)
    };
    let read =
        |(process, one): (usize, &Vec<u8>)| serde_json::from_slice(one).map_err(|_| other(process));
    all.iter().enumerate().map(read).collect()
}
