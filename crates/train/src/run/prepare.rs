//! Everything before the first step: checkpoint, data, and the weights that the ranks of a process share. Done once per process, before
//! processes agree to begin, on a thread of its own, so that a request to stop need not wait for a long text or large weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use annulus_data::Progress;
use annulus_experiment::{Experiment, Format, KeyDifference, what_may_differ};
use annulus_plan::Plan;

use crate::checkpoint::identity::CURVE;
use crate::checkpoint::{Found, checkpoint_folder, identity, newest, opened};
use crate::error::failure;
use crate::folder::lines::read_lines;
use crate::folder::manifest::Fork;
use crate::run::fork::begin_with_weights;
use crate::run::moved::check_weights;
use crate::run::trained_on;
use crate::setup::checked_data::of_data;
use crate::setup::data::{data_fingerprint, fingerprint_of_phases};
use crate::setup::fits;
use crate::setup::initial::{base_of, check_beside, initial_weights};
use crate::setup::saved::load;
use crate::setup::shared::ranks_here;
use crate::setup::start::Start;
use crate::sink::{Notice, Sink};
use crate::step::measure::resident::OfProcess;
use crate::step::state::parameters::Store;
use crate::{Data, Opening, Result, Setup, TrainError};

/// The interval at which a request to stop is looked for.
const GLANCE: Duration = Duration::from_millis(20);

/// What an attempt begins with: checkpoint, data and weights.
pub(crate) struct Prepared {
    /// The checkpoint that the run resumes from, if any.
    pub(crate) found: Option<Found>,
    /// Warnings about damaged checkpoints.
    pub(crate) warnings: Vec<String>,
    /// Data and weights; `None`: the run has been finished before.
    pub(crate) work: Option<Work>,
}

/// Opened data and weights of an attempt.
pub(crate) struct Work {
    pub(crate) data: Data,
    /// The fingerprint of the data, of all phases.
    pub(crate) fingerprint: String,
    pub(crate) start: Start,
    /// The hash of the weights that the attempt begins with.
    pub(crate) weights: String,
    /// This process's memory before it has the weights that its ranks share.
    pub(crate) process: OfProcess,
    pub(crate) store: Arc<Store>,
    /// Whether the run begins with this attempt, rather than with a checkpoint of its own.
    pub(crate) begins: bool,
    /// Steps whose checkpoints are damaged.
    pub(crate) refused: Vec<u64>,
}

/// The checkpoint in a run's folder from which it resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeFrom {
    /// The newest whole checkpoint, if there is one.
    Newest,
    /// The checkpoint of the step that process 0 has found; `None`: it found none.
    Named(Option<u64>),
}

impl ResumeFrom {
    /// The checkpoint in `output`, and warnings about newer ones.
    fn find(self, output: &Path) -> Result<(Option<Found>, Vec<String>)> {
        let ResumeFrom::Named(step) = self else { return newest(output) };
        let found = step.map(|step| opened(&checkpoint_folder(output, step)));
        let found = found.transpose().map_err(|error| {
            TrainError::checkpoint(
                error.to_string(),
                "let all hosts share that folder, or copy the checkpoint to each",
            )
        })?;
        Ok((found, Vec::new()))
    }
}

/// The keys by which `plan` is refused when it would resume the run in its folder, each with both values. Empty: it is not, or there is
/// nothing to resume that can be read, of which training itself reports more.
pub fn unlike_checkpoint(plan: &Plan) -> Vec<String> {
    let found = newest(&plan.experiment.output).ok().and_then(|(found, _)| found);
    found.and_then(|found| identity::differences(plan, &found).ok()).unwrap_or_default()
}

/// Runs `work` on a thread of its own. `None`: `stop` was set first, and the thread runs on unobserved; it writes token caches atomically.
pub(crate) fn interruptible<T: Send + 'static>(
    stop: &AtomicBool,
    console: &mut dyn Sink,
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<T> + Send + 'static,
) -> Result<Option<T>> {
    let (progress, progressed) = channel();
    let told = move |now| {
        // Nobody receives this once the run has stopped.
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
            // The sender is gone: the work has ended or panicked.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match thread.join() {
        Ok(result) => result.map(Some),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Finds the checkpoint to resume `from`, if there is one, and opens data and weights; first, of a run with several phases, the data of all
/// `stages`.
pub(crate) fn prepare(
    plan: &Plan,
    setup: &Setup,
    stages: &[Plan],
    from: ResumeFrom,
    fork: Option<&Fork>,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared> {
    let output = &plan.experiment.output;
    let (found, mut warnings) = from.find(output)?;
    if let Some(found) = &found {
        let differing = identity::differences(plan, found)?;
        refuse(plan, found, &differing, opening.again)?;
        refuse_fewer(plan, found)?;
        if from == ResumeFrom::Newest && is_over(plan, found.state.step)? {
            check_finished(plan, setup, found, opening, progress)?;
            return Ok(Prepared { found: Some(found.clone()), warnings, work: None });
        }
    }
    let of_all = fingerprint_of(stages, opening, progress)?;
    let data = examined(plan, opening, progress)?;
    warnings.extend(data.notes.iter().cloned());
    let fingerprint = of_all.unwrap_or_else(|| data.train.fingerprint());
    let start = match &found {
        Some(found) => resumed(plan, setup, found, from, &fingerprint, opening.again)?,
        None => begun(plan, setup, fork, &mut warnings)?,
    };
    let weights = start.weights.hash()?;
    let process = OfProcess::before();
    let store = Store::new(setup, &start.weights, ranks_here(&setup.processes, setup.world())?)?;
    let refused = found.as_ref().map_or_else(Vec::new, |found| found.refused.clone());
    let begins = found.is_none();
    let work = Work { data, fingerprint, start, weights, process, store, begins, refused };
    Ok(Prepared { found, warnings, work: Some(work) })
}

/// What a run begins with that resumes no checkpoint of its own.
fn begun(
    plan: &Plan,
    setup: &Setup,
    fork: Option<&Fork>,
    warnings: &mut Vec<String>,
) -> Result<Start> {
    if let Some(fork) = fork {
        let (start, of_fork) = fork.start(plan, setup)?;
        warnings.extend(of_fork);
        return Ok(start);
    }
    warnings.extend(trained_on::warning(&plan.experiment, None));
    Ok(Start::fresh(&plan.experiment, initial_weights(plan, &setup.config)?))
}

/// An error if the last step of `plan` is before a checkpoint: the run would end with what it is not asked for.
fn refuse_fewer(plan: &Plan, found: &Found) -> Result<()> {
    let (done, last) = (found.state.step, plan.experiment.last_step());
    if done <= last {
        return Ok(());
    }
    let folder = found.folder.display();
    Err(TrainError::checkpoint(
        format!("`{folder}` has {done} steps, and the last step here is {last}"),
        format!(
            "set `schedule.steps`, and `schedule.stop` if there is one, to at least {done}, or set another `output`"
        ),
    ))
}

/// Whether nothing is left to do after `step`: it is the last one, and is evaluated where text is held out.
fn is_over(plan: &Plan, step: u64) -> Result<bool> {
    let Experiment { data, output, .. } = &plan.experiment;
    Ok(step >= plan.experiment.last_step() && (data.evaluate == 0 || is_evaluated(output, step)?))
}

/// Checks what a finished run is given by other paths than it was trained with; what has the same path is not read.
fn check_finished(
    plan: &Plan,
    setup: &Setup,
    found: &Found,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let moved = identity::moved(plan, found)?;
    if moved.iter().any(|one| one.key.starts_with("data.")) {
        let fingerprint = data_fingerprint(plan.experiment.written(), opening, progress)?;
        refuse_other_data(plan, found, &fingerprint, opening.again)?;
    }
    let base = base_of(plan).filter(|_| moved.iter().any(|one| one.key == "model.path"));
    base.map_or(Ok(()), |base| check_beside(&found.folder, base))?;
    check_weights(plan, setup, found)
}

/// The state of a checkpoint, which must have been trained on the data of `fingerprint`. What the run began with is compared by the process
/// that chooses where to resume `from`: its manifest need not be on other hosts. `again`: as [`Opening::again`].
fn resumed(
    plan: &Plan,
    setup: &Setup,
    found: &Found,
    from: ResumeFrom,
    fingerprint: &str,
    again: Option<&Path>,
) -> Result<Start> {
    refuse_other_data(plan, found, fingerprint, again)?;
    let start = load(found, base_of(plan), &setup.config)?;
    if from == ResumeFrom::Newest {
        check_weights(plan, setup, found)?;
    }
    let part = plan.experiment.phase_start();
    let since = found.state.moments.unwrap_or(part.moments);
    let begins = part.steps.start > 0 && start.step == part.moments;
    Ok(if begins { start.anew() } else { Start { since, ..start } })
}

/// The folder of a checkpoint; where a step of the run `again` is computed again, that run's own, and not the copy of it.
fn shown(found: &Found, again: Option<&Path>) -> PathBuf {
    again.map_or_else(|| found.folder.clone(), |run| checkpoint_folder(run, found.state.step))
}

/// An error unless the data of `fingerprint` are those of a checkpoint. `again`: as [`Opening::again`].
fn refuse_other_data(
    plan: &Plan,
    found: &Found,
    fingerprint: &str,
    again: Option<&Path>,
) -> Result<()> {
    let saved = &found.state.data;
    if saved == fingerprint {
        return Ok(());
    }
    let (what, back) = if identity::has_other_tokenizer(plan, found)? {
        let name = plan.experiment.data.tokenizer();
        (format!("with another tokenizer than `{name}`"), "restore the tokenizer")
    } else {
        other_data(plan, &found.state.experiment()?)
    };
    let (folder, run) = (shown(found, again), run_of(found).display());
    let or = if again.is_some() {
        "name where they are now, as in `data.path=NEW`".to_owned()
    } else {
        format!("start a new run with another `name=` or `output=` (weights: `--from {run}`)")
    };
    let message = format!("`{}` was trained {what}", folder.display());
    Err(TrainError::checkpoint(message, format!("{back}, or {or}")))
}

/// How data differ from those of a checkpoint of `saved` with the same tokenizer, as far as a fingerprint shows it, and what restores them.
fn other_data(plan: &Plan, saved: &Experiment) -> (String, &'static str) {
    let data = &plan.experiment.data;
    let (what, or, back) = match data.format {
        Format::Batches => ("batches", "", "restore the batches"),
        Format::Chat => (
            "conversations",
            ", or by another chat template",
            "restore the conversations and the template",
        ),
        _ => ("texts", "", "restore the texts"),
    };
    let paths: Vec<String> =
        data.path.iter().map(|source| format!("`{}`", source.path.display())).collect();
    let weights = if paths.len() > 1 { ", or with other weights," } else { "" };
    let paths = paths.join(", ");
    let back = if data.path == saved.data.path { back } else { "set `data.path` back" };
    let way = match &data.path[..] {
        _ if data.path != saved.data.path => format!("on other {what}{weights} than {paths}{or}"),
        [_] => format!(
            "on other {what}{or}: {paths} has changed since, or this version reads it otherwise"
        ),
        _ => format!(
            "on other {what}{or}: one of {paths} has changed since, or this version reads it otherwise"
        ),
    };
    (way, back)
}

/// One fingerprint of the data of several phases, each of which is checked against its data and the machine; `None`: no phases.
fn fingerprint_of(
    stages: &[Plan],
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<String>> {
    let mut prints = Vec::new();
    for plan in stages {
        prints.push(examined(plan, opening, progress)?.train.fingerprint());
    }
    Ok((!stages.is_empty()).then(|| fingerprint_of_phases(prints)))
}

/// The data of `plan`, after checks that the plan fits the machine and the data fits the plan.
fn examined(plan: &Plan, opening: Opening<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Data> {
    fits::check_memory(plan)?;
    of_data(plan, opening, progress)
}

/// Whether `metrics.jsonl` has an evaluation of step `step`.
fn is_evaluated(output: &Path, step: u64) -> Result<bool> {
    let lines = read_lines(output).map_err(|error| failure("read", output, &error))?;
    Ok(lines.iter().any(|line| line.is_evaluated_at(step)))
}

/// The folder of the run whose checkpoint this is.
fn run_of(found: &Found) -> &Path {
    found.folder.parent().unwrap_or(&found.folder)
}

/// How what differs in so many `ways` is set back; `keys` are those of them that the experiments have.
fn set_back(keys: &[KeyDifference], ways: usize) -> String {
    match keys {
        _ if ways > 1 => "set them back".to_owned(),
        [KeyDifference { key, was: None, .. }, ..] => format!("remove `{key}`"),
        [KeyDifference { key, was: Some(was), .. }, ..] => format!("set `{key}` back to `{was}`"),
        // Then its config.json is another.
        [] => "restore the model".to_owned(),
    }
}

/// An error if the keys of a checkpoint and the experiment differ. `again`: as [`Opening::again`].
fn refuse(plan: &Plan, found: &Found, differing: &[String], again: Option<&Path>) -> Result<()> {
    if differing.is_empty() {
        return Ok(());
    }
    let run = again.unwrap_or_else(|| run_of(found)).display();
    let hint = if differing.iter().all(|text| text.starts_with(&format!("`{CURVE}"))) {
        format!(
            "`schedule` may change only the rates of later steps, and this changes those of steps already done: set it back, \
             or fork the run: `output=… --from {run}`"
        )
    } else {
        let (saved, now) = (found.state.experiment()?, plan.experiment.written());
        let keys = identity::of_keys(&saved, now, found.state.step);
        let back = set_back(&keys, differing.len());
        let or = if differing.iter().any(|text| identity::is_of_model(text)) {
            let begin = begin_with_weights(&run.to_string(), &saved, now);
            format!(", or start another run with another `name=` or `output=` ({begin})")
        } else {
            format!(
                ", or start another run: `name=NEW` or `output=… --from {run}` (keys that may change on resume: {}, paths of the \
                 same files, and `schedule` from this step on)",
                what_may_differ()
            )
        };
        back + if again.is_some() { ": a step is computed again as it was" } else { &or }
    };
    let (folder, differing) = (shown(found, again), differing.join("; "));
    let folder = folder.display();
    Err(TrainError::checkpoint(
        format!("`{folder}` belongs to a different experiment: {differing}"),
        hint,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_removed_where_it_was_absent_and_else_set_back() {
        let key = |was: Option<&str>| {
            let [was, is] = [was, Some("text")].map(|value| value.map(str::to_owned));
            [KeyDifference { key: "data.column".to_owned(), was, is }]
        };
        assert_eq!(set_back(&key(None), 1), "remove `data.column`");
        assert_eq!(set_back(&key(Some("nothing")), 1), "set `data.column` back to `nothing`");
        assert_eq!(set_back(&key(None), 2), "set them back");
    }
}
