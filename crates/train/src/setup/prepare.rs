//! Everything before the first step: checkpoint, data, what the ranks of a process share of weights. Done once per process, on a
//! thread of its own, so that a request to stop need not wait for a long text or large weights; and before processes agree to begin.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use annulus_data::Progress;
use annulus_experiment::{Format, what_may_differ};
use annulus_plan::Plan;

use crate::checkpoint::{Found, load, newest, opened};
use crate::run::folder::failure;
use crate::run::fork::Fork;
use crate::run::given::here;
use crate::run::identity;
use crate::run::lines::read_lines;
use crate::run::manifest::initial_hash;
use crate::run::sink::{Notice, Sink};
use crate::setup::fits;
use crate::setup::initial::{base_of, initial_weights};
use crate::setup::start::Start;
use crate::step::parameters::Store;
use crate::step::resident::OfProcess;
use crate::{Data, Opening, Result, Setup, TrainError, open_data};

/// How often a request to stop is looked for.
const GLANCE: Duration = Duration::from_millis(20);

/// What an attempt begins with.
pub(crate) struct Prepared {
    /// The checkpoint it goes on from.
    pub(crate) found: Option<Found>,
    /// About checkpoints that are damaged.
    pub(crate) warnings: Vec<String>,
    /// `None`: the run has been finished before.
    pub(crate) work: Option<Work>,
}

/// Data and weights.
pub(crate) struct Work {
    pub(crate) data: Data,
    /// Of the data, in all stages.
    pub(crate) fingerprint: String,
    pub(crate) start: Start,
    /// The hash of the weights to begin with.
    pub(crate) weights: String,
    /// What this process had in memory before its ranks' share of them.
    pub(crate) process: OfProcess,
    pub(crate) store: Arc<Store>,
}

/// Which checkpoint of its folder a run goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeFrom {
    /// The newest that is whole, if there is one.
    Newest,
    /// The one that process 0 has found; `None`: it found none.
    Named(Option<u64>),
}

impl ResumeFrom {
    /// The checkpoint in `output`, and what is wrong with newer ones.
    fn find(self, output: &Path) -> Result<(Option<Found>, Vec<String>)> {
        let ResumeFrom::Named(step) = self else { return newest(output) };
        let found = step.map(|step| opened(&output.join(format!("step-{step}"))));
        let found = found.transpose().map_err(|error| TrainError::Checkpoint {
            message: error.to_string(),
            hint: Some("let all hosts share that folder, or copy the checkpoint to each".into()),
        })?;
        Ok((found, Vec::new()))
    }
}

/// Runs `work` on its own thread. `None`: `stop` was set first, and the thread is left to itself;
/// what it writes (a token cache) it writes atomically.
pub(crate) fn interruptible<T: Send + 'static>(
    stop: &AtomicBool,
    console: &mut dyn Sink,
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<T> + Send + 'static,
) -> Result<Option<T>> {
    let (progress, progressed) = channel();
    let told = move |now| {
        // Nobody listens once the run has stopped.
        let _ = progress.send(now);
    };
    let thread = thread::Builder::new().name("preparing".to_owned());
    let thread = thread.spawn(move || work(&mut { told })).map_err(|error| {
        TrainError::Internal(format!("the system has no thread to prepare the run: {error}"))
    })?;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match progressed.recv_timeout(GLANCE) {
            Ok(Progress::Reading { done, total }) => {
                console.notice(&Notice::Reading { done, total });
            }
            Ok(waiting) => console.notice(&Notice::Warning(&waiting.to_string())),
            Err(RecvTimeoutError::Timeout) => {}
            // The sender is gone: the work is done, or died.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match thread.join() {
        Ok(result) => result.map(Some),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Finds the checkpoint to go on `from`, if there is one, and opens data and weights, and first the data of all `stages`, if it is one
/// of several.
pub(crate) fn prepare(
    plan: &Plan,
    setup: &Setup,
    stages: &[Plan],
    (from, fork): (ResumeFrom, Option<&Fork>),
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared> {
    let output = &plan.experiment.output;
    let (found, mut warnings) = from.find(output)?;
    if let Some(found) = &found {
        let differing = identity::differences(plan, found)?;
        refuse(found, &differing)?;
        if from == ResumeFrom::Newest
            && found.state.step >= plan.experiment.last_step()
            && (plan.experiment.data.evaluate == 0 || is_evaluated(output, found.state.step)?)
        {
            return Ok(Prepared { found: Some(found.clone()), warnings, work: None });
        }
    }
    let of_all = fingerprint_of(stages, opening, progress)?;
    let data = examined(plan, opening, progress)?;
    warnings.extend(data.notes.iter().cloned());
    let fingerprint = of_all.unwrap_or_else(|| data.train.fingerprint());
    let start = match (&found, fork) {
        (Some(found), _) => resumed(plan, setup, found, &fingerprint)?,
        (None, Some(fork)) => {
            let (start, of_fork) = fork.start(plan, setup)?;
            warnings.extend(of_fork);
            start
        }
        (None, None) => Start::fresh(initial_weights(plan, &setup.config)?),
    };
    let weights = initial_hash(&start.weights)?;
    let process = OfProcess::before();
    let store = Store::new(setup, &start.weights, here(&setup.processes, setup.world())?)?;
    let work = Work { data, fingerprint, start, weights, process, store };
    Ok(Prepared { found, warnings, work: Some(work) })
}

/// The state of a checkpoint whose data are those of `fingerprint`.
fn resumed(plan: &Plan, setup: &Setup, found: &Found, fingerprint: &str) -> Result<Start> {
    let saved = &found.state.data;
    if saved != fingerprint {
        let message = format!("the data's fingerprint was `{saved}` and is `{fingerprint}`");
        refuse(found, &[message])?;
    }
    let base = base_of(plan);
    check_base(found, base)?;
    let start = load(found, base, &setup.config)?;
    let part = plan.experiment.phase_start();
    let since = found.state.moments.unwrap_or(part.moments);
    let begins = part.steps.start > 0 && start.step == part.moments;
    Ok(if begins { start.anew() } else { Start { since, ..start } })
}

/// Of the data of several stages together; each is held to its data and to the machine.
fn fingerprint_of(
    stages: &[Plan],
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<String>> {
    let mut hasher = blake3::Hasher::new();
    for plan in stages {
        hasher.update(examined(plan, opening, progress)?.train.fingerprint().as_bytes());
    }
    Ok((!stages.is_empty()).then(|| hasher.finalize().to_hex().to_string()))
}

/// The data of `plan`, which fits into the machine, and to which its data fits.
fn examined(plan: &Plan, opening: Opening<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Data> {
    fits::check_memory(plan)?;
    of_data(plan, opening, progress)
}

/// The data of `plan`, which has as many batches as steps need, and no id that the model does not know.
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

/// Whether `metrics.jsonl` says that step `step` was evaluated.
fn is_evaluated(output: &Path, step: u64) -> Result<bool> {
    let lines = read_lines(output).map_err(|error| failure("read", output, &error))?;
    Ok(lines.iter().any(|line| line.is_evaluated_at(step)))
}

/// An error, if there is any difference.
fn refuse(found: &Found, differing: &[String]) -> Result<()> {
    if differing.is_empty() {
        return Ok(());
    }
    let (folder, differing) = (found.folder.display(), differing.join("; "));
    Err(TrainError::Checkpoint {
        message: format!("`{folder}` belongs to a different experiment: {differing}"),
        hint: Some(format!(
            "on resume only these may differ: {}, paths of the same files, and `schedule` from this step on; set the rest back, set \
             another `output`, or begin another run there with `--from`",
            what_may_differ()
        )),
    })
}

/// Adapters mean nothing beside other weights than those that they were trained beside.
fn check_base(found: &Found, base: Option<&Path>) -> Result<()> {
    let Some((saved, folder)) = found.state.base.as_ref().zip(base) else { return Ok(()) };
    let now = annulus_model::fingerprint(folder)?;
    if *saved == now {
        return Ok(());
    }
    let folder = folder.display();
    refuse(found, &[format!("the hash of the weights in `{folder}` was `{saved}` and is `{now}`")])
}

/// Ready-made batches end; a schedule that goes on longer is a mistake that should not wait until
/// then.
fn check_batches(plan: &Plan, data: &Data) -> Result<()> {
    let part = plan.experiment.phase_start();
    let steps = plan.experiment.last_step().saturating_sub(part.steps.start);
    let (first, wanted) = (part.steps.start, part.batch + steps);
    let ready_made = plan.experiment.data.format == Format::Batches;
    match data.train.batches().filter(|_| ready_made && steps > 0) {
        Some(batches) if batches < wanted => Err(TrainError::Configuration {
            message: format!("{wanted} steps, but the data has {batches} batches"),
            hint: Some(format!(
                "set `schedule.stop` to {} or less",
                first + batches.saturating_sub(part.batch)
            )),
        }),
        _ => Ok(()),
    }
}

/// An id that the model has no row for would end the run at the step that meets it.
fn check_vocabulary(plan: &Plan, data: &Data) -> Result<()> {
    let (wanted, rows) = (data.train.vocabulary(), plan.vocabulary());
    if wanted <= rows {
        return Ok(());
    }
    let path = plan.experiment.data.path.first();
    let path = path.map_or(Path::new("the data"), |source| &source.path);
    Err(TrainError::Configuration {
        message: format!(
            "`{}` holds the id {}, but the model has {rows} tokens",
            path.display(),
            wanted - 1
        ),
        hint: Some(format!("set `model.vocab_size` to {wanted} or more, or use other data")),
    })
}
