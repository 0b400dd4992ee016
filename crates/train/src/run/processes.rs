//! A run over several processes: process 0 leads, and before the first step all are checked to be alike.
//!
//! Process 0 resolves the experiment, settles what it leaves open, locks the run's folder and finds the checkpoint. The others are told
//! which, read data and weights for their own ranks, from the same folders or from copies on their hosts, and prove by hashes that they
//! have read what process 0 has.

use std::sync::Arc;

use annulus_comm::{Error as CommError, World};
use annulus_machine::Core;
use annulus_model::Weights;
use annulus_plan::Plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Found, identity};
use crate::folder::manifest::{Fork, program};
use crate::run::attempt::{Attempt, Led, prepared};
use crate::run::options::RunOptions;
use crate::run::outcome::{Ending, Outcome};
use crate::run::phases::Phase;
use crate::run::prepare::{ResumeFrom, Work};
use crate::run::settings::Settings;
use crate::setup::shared::{of_another, once, unreached};
use crate::setup::weights::InitialWeights;
use crate::sink::Sink;
use crate::{Result, Setup, TrainError};

/// What process 0 tells the others before the first step.
#[derive(Serialize, Deserialize)]
enum Word {
    /// The run begins, or resumes from the checkpoint of `step`.
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
    /// The process cannot begin: why, and the way out.
    Cannot(String, Option<String>),
}

impl Said {
    pub(crate) fn of(facts: &Result<Facts>) -> Said {
        match facts {
            Ok(facts) => Said::Has(facts.clone()),
            Err(error) => Said::cannot(error),
        }
    }

    fn cannot(error: &TrainError) -> Said {
        Said::Cannot(error.to_string(), error.hint())
    }
}

/// Tells the other processes what process 0 has found.
pub(crate) fn lead(world: &World, led: &Result<Led>) -> Result<()> {
    let word = match led {
        Err(_) => Word::Failed,
        Ok(Led { prepared: None, .. }) => Word::Stopped,
        Ok(Led { prepared: Some(prepared), fork, .. }) => {
            let step = prepared.found.as_ref().map(|found| found.state.step);
            match prepared.work {
                None => Word::Done { step: step.unwrap_or_default() },
                Some(_) => Word::Begin { step, fork: fork.clone() },
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
    let agreed = agree(&options.world, &facts);
    if matches!(agreed, Ok(false)) {
        return Ok(nothing);
    }
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
        TrainError::Internal("process 0 goes on with a run that is finished".to_owned())
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
        let process = index + 1;
        let host = world.hosts().get(process).map_or("", String::as_str);
        let cannot = |why, hint| TrainError::Configuration {
            message: format!("process {process} on `{host}` cannot begin: {why}"),
            hint,
        };
        let facts = match said {
            Some(Said::Has(facts)) => facts,
            Some(Said::Cannot(why, hint)) => return Err(cannot(why, hint)),
            Some(Said::Stopped) | None => return Err(cannot("it said nothing".to_owned(), None)),
        };
        let pairs = first.alike.iter().zip(&facts.alike);
        if let Some(((what, here), (_, there))) = pairs.into_iter().find(|(a, b)| a != b) {
            let of_first = world.hosts().first().map_or("", String::as_str);
            return Err(TrainError::configuration(
                format!(
                    "processes differ in {what}: `{here}` in process 0 on `{of_first}`, `{there}` in \
                     process {process} on `{host}`"
                ),
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
        Ok(Facts::with(
            &setup.processes,
            [
                ("what they compute on", setup.computes_on()?),
                ("the phase", phase.to_owned()),
                ("the settings", Settings::of(plan).to_string()),
                ("the plan", hashed(plan)),
                ("the data", fingerprint.clone()),
                ("the step", start.step.to_string()),
                ("the checkpoint", checkpoint),
                ("the weights", weights.clone()),
            ],
        ))
    }

    /// The facts that every process has (program, MPI library, vector instructions), and `more`.
    fn with<const N: usize>(world: &World, more: [(&str, String); N]) -> Facts {
        let instructions = Core::here().instructions.word().to_owned();
        let library = world.facts().map_or_else(String::new, |facts| facts.library.clone());
        let own = [
            ("the program", program()),
            ("the library of MPI", library),
            ("the vector instructions", instructions),
        ];
        let all = own.into_iter().chain(more);
        Facts { alike: all.map(|(what, value)| (what.to_owned(), value)).collect() }
    }
}

/// The hash of a plan's experiment; of one of several phases, of all of them and of what is settled for this one.
fn hashed(plan: &Plan) -> String {
    let texts = [identity::resolved_text(plan), plan.experiment.to_yaml()];
    blake3::hash(texts.concat().as_bytes()).to_hex().to_string()
}

/// An error unless the program of every process and, where given, its plan and weights equal those of process 0.
///
/// # Errors
/// The first difference, reported by process 0; the other processes get an error that process 0 has ended.
pub fn alike(world: &World, plan: Option<&Plan>, weights: Option<&Weights>) -> Result<()> {
    if world.processes() == 1 {
        return Ok(());
    }
    let weights = weights
        .map(|own| InitialWeights::from(own.clone()).hash())
        .transpose()?
        .unwrap_or_default();
    let facts = Facts::with(
        world,
        [("the plan", plan.map(hashed).unwrap_or_default()), ("the weights", weights)],
    );
    agree(world, &Said::Has(facts)).map(drop).map_err(|error| once(world, error))
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
    all.iter().map(|one| serde_json::from_slice(one).map_err(unreadable)).collect()
}
