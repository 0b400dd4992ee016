//! A whole run: from a plan to a finished run folder, in as many attempts as it takes.
//!
//! Where every process holds the state whole, rank 0 saves its process's without asking the others; where each holds a shard, every rank
//! writes its own (`run/sharded_save.rs`). Ranks apply a step together or not at all: those of a process decide it in memory
//! (`step/meeting.rs`), and a rank that has contributed to a step's last sum does not stop before it knows whether all have.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::World;
use annulus_data::Progress;
use annulus_plan::Plan;
use parking_lot::Mutex;

use crate::checkpoint::{Texts, identity, last_checkpoint, point};
use crate::error::failure;
use crate::folder::curves::Curves;
use crate::folder::lines::Lines;
use crate::folder::manifest::{FINISHED, Fork, Machine, Manifest, PREEMPTED};
use crate::folder::record::Record;
use crate::folder::run_folder::RunFolder;
use crate::folder::traces;
use crate::run::console::Console;
use crate::run::hashes::HashLines;
use crate::run::needs;
use crate::run::options::RunOptions;
use crate::run::outcome::{Ending, Outcome};
use crate::run::phases::{Phase, phase_name};
use crate::run::prepare::{Prepared, ResumeFrom, Work, interruptible, prepare};
use crate::run::processes::{self, Facts, Said};
use crate::run::recorder::Recorder;
use crate::run::rerun::{beginning, resumes_otherwise};
use crate::run::starts::{manifest, rounding};
use crate::setup::device;
use crate::setup::initial::base_of;
use crate::setup::pages::Room;
use crate::setup::start::{Handout, Start};
use crate::sink::{Notice, Sink};
use crate::step::hashes::dump::Dump;
use crate::step::measure::resident::OfProcess;
use crate::step::state::parameters::Store;
use crate::{Data, Opening, Result, Setup};

/// Trains `plan` to its end, from the step that its folder has reached; messages for a person go to `console`.
///
/// # Errors
/// Bad data, weights or checkpoints, a run that diverges, and any failure of a rank.
pub fn run(plan: &Plan, options: RunOptions, console: &mut (dyn Sink + Send)) -> Result<Outcome> {
    run_phase(Phase { plan, stages: &[] }, options, console)
}

/// Trains one phase of a run.
pub(crate) fn run_phase(
    phase: Phase<'_>,
    mut options: RunOptions,
    console: &mut (dyn Sink + Send),
) -> Result<Outcome> {
    if options.world.process() > 0 {
        return processes::follow(phase, options, console);
    }
    let plan = phase.plan;
    let led = lead(phase, &mut options, console);
    processes::lead(&options.world, &led)?;
    let Led { setup, folder, mut outcome, prepared, .. } = led?;
    // The checkpoint is not checked yet; if it is whole, the run resumes from it.
    let step = last_checkpoint(&folder.path).unwrap_or(0);
    let Some(prepared) = prepared else { return Ok(Outcome { step, ..outcome }) };
    if let Some(work) = prepared.work.as_ref().filter(|_| options.world.processes() > 1) {
        let facts = Facts::of(&setup, plan, prepared.found.as_ref(), work);
        let agreed = processes::agree(&options.world, &Said::of(&facts));
        // If this process cannot begin, it says why itself.
        facts?;
        if !agreed? {
            return Ok(Outcome { step, ..outcome });
        }
        if let Some(said) = setup.join()? {
            console.notice(&Notice::Joined(&said));
        }
    }
    outcome.warnings = announced(plan, &setup, &prepared, console);
    if let Some(found) = prepared.found {
        folder.claim.check().and_then(|()| point(&folder.path, found.state.step))?;
        outcome.step = found.state.step;
        outcome.resumed_from = Some(found.state.step);
        outcome.checkpoint = Some(found.folder);
    }
    match prepared.work {
        Some(work) => train(phase, &setup, &options, console, &folder, work, outcome),
        None => Ok(Outcome { ending: Ending::AlreadyFinished, resumed_from: None, ..outcome }),
    }
}

/// Announces the GPUs that compute, all warnings, those of device and plan before those of what was prepared, and how many sequences
/// there are; returns the warnings.
fn announced(
    plan: &Plan,
    setup: &Setup,
    prepared: &Prepared,
    console: &mut dyn Sink,
) -> Vec<String> {
    let gpus = plan.gpus();
    if !gpus.is_empty() {
        console.notice(&Notice::OnGpus(&gpus));
    }
    let of_device =
        device::device_warning(&plan.experiment.device).filter(|_| setup.processors.is_empty());
    let of_plan = plan.warnings.iter().cloned();
    let own = prepared.warnings.iter().cloned();
    let of_setup = [setup.warning(), setup.warning_of_several()].into_iter().flatten();
    let all: Vec<_> = of_device.into_iter().chain(of_setup).chain(of_plan).chain(own).collect();
    for warning in &all {
        console.notice(&Notice::Warning(warning));
    }
    let earlier = || Manifest::read(&plan.experiment.output)?.began;
    let began = |work: &Work| match &prepared.found {
        Some(_) => earlier().unwrap_or(0),
        None => work.start.step,
    };
    let work = prepared.work.as_ref();
    let data = work.map(|work| work.data.epochs_of(&plan.experiment, began(work)));
    for line in data.iter().flatten() {
        console.notice(&Notice::Data(line));
    }
    all
}

/// What process 0 has opened before the first step.
pub(crate) struct Led {
    setup: Arc<Setup>,
    folder: RunFolder,
    outcome: Outcome,
    pub(crate) fork: Option<Fork>,
    pub(crate) prepared: Option<Prepared>,
}

/// Opens the run's folder, data and weights on process 0.
fn lead(phase: Phase<'_>, options: &mut RunOptions, console: &mut dyn Sink) -> Result<Led> {
    let plan = phase.plan;
    let setup = Arc::new(options.setup(plan)?);
    let folder = RunFolder::open(&plan.experiment.output)?;
    let outcome = Outcome::at(&folder.path)?;
    let earlier = Manifest::open(&folder.path)?;
    let began = earlier.as_ref().and_then(|manifest| manifest.fork.as_ref());
    if let Some(fork) = &options.fork {
        fork.refuse_another(&folder.path, began)?;
    }
    let asked = options.fork.take().or_else(|| began.cloned());
    // A run that was stopped before its first checkpoint begins again where it began, though its origin may have gone on.
    let again = earlier.as_ref().filter(|_| asked.as_ref() == began);
    options.fork = match again.filter(|_| last_checkpoint(&folder.path).is_none()) {
        Some(manifest) => beginning(&folder.path, manifest)?,
        None => asked.clone(),
    };
    options.world.note("opening data and weights");
    let prepared = prepared(phase, &setup, ResumeFrom::Newest, options, console);
    let fork = std::mem::replace(&mut options.fork, asked);
    if !matches!(prepared, Ok(Some(_))) {
        folder.forget_if_new();
    }
    let prepared = prepared?;
    if prepared.as_ref().is_some_and(|prepared| prepared.work.is_some()) {
        folder.forget_flight()?;
        options.record(&setup, &folder.path)?;
    }
    Ok(Led { setup, folder, outcome, fork, prepared })
}

/// Data, weights and state that an attempt begins with; `None`: it was asked to stop meanwhile.
pub(crate) fn prepared(
    phase: Phase<'_>,
    setup: &Arc<Setup>,
    from: ResumeFrom,
    options: &RunOptions,
    console: &mut dyn Sink,
) -> Result<Option<Prepared>> {
    let (plan, setup, stages) = (phase.plan.clone(), setup.clone(), phase.stages.to_vec());
    let (tokenizer, verify, fork) =
        (options.tokenizer.clone(), options.verify_cache, options.fork.clone());
    let again = options.dump.as_ref().and(options.rerun.as_ref()).map(|again| again.run.clone());
    let work = move |progress: &mut dyn FnMut(Progress)| {
        let (tokenizer, again) = (tokenizer.as_deref(), again.as_deref());
        let opening = Opening { tokenizer, verify, again, ..Opening::default() };
        prepare(&plan, &setup, &stages, from, fork.as_ref(), opening, progress)
    };
    let prepared = interruptible(&options.stop, console, work)?;
    if prepared.is_none() {
        options.world.asked();
    }
    Ok(prepared)
}

/// What the ranks of this process share in an attempt.
pub(crate) struct Attempt<'a> {
    pub(super) plan: &'a Plan,
    pub(crate) setup: Arc<Setup>,
    pub(super) data: Data,
    pub(super) stop: Arc<AtomicBool>,
    pub(crate) world: World,
    pub(super) start: Handout<Start>,
    pub(crate) store: Arc<Store>,
    /// Whether the run begins with this attempt.
    pub(super) begins: bool,
    pub(super) owes: bool,
    /// Peak operations per second of all cores, or of all GPUs; `None` where it is unknown.
    pub(super) peak: Option<f64>,
    /// What this process had in memory before its ranks began.
    pub(super) process: OfProcess,
    pub(super) room: Room,
    /// The step of which all tensors are written down.
    pub(super) dump: Option<Dump>,
    pub(super) recorder: Mutex<Option<Recorder<'a>>>,
}

/// Trains, and keeps the record of the attempt in the manifest from its start to its end.
fn train(
    phase: Phase<'_>,
    setup: &Arc<Setup>,
    options: &RunOptions,
    console: &mut (dyn Sink + Send),
    folder: &RunFolder,
    work: Work,
    mut outcome: Outcome,
) -> Result<Outcome> {
    let plan = phase.plan;
    folder.claim.check()?;
    let mut manifest = manifest(plan, options, setup, folder, &work, outcome.resumed_from)?;
    manifest.begin(plan, setup, phase_name(plan), outcome.resumed_from, &options.command);
    manifest.write(&folder.path)?;
    for warning in of_starts(phase, options, folder, &manifest) {
        console.notice(&Notice::Warning(&warning));
    }
    let (recorder, owes) = recorder(plan, console, folder, &work, &manifest)?;
    let mut attempt = Attempt { owes, ..Attempt::new(plan, setup, options, work, Some(recorder))? };
    attempt.settle_peak(&mut manifest.machine);
    manifest.write(&folder.path)?;
    let ended = attempt.run().map_err(|error| error.in_run(&folder.path));
    note_end(&mut manifest, plan, &ended);
    let written = folder.claim.check().and_then(|()| manifest.write(&folder.path));
    let record;
    // The error that ended the run matters more than one of noting it.
    (outcome.ending, outcome.step, record) = ended?;
    written?;
    outcome.losses = record.losses;
    outcome.warnings.extend(record.warnings);
    (outcome.first, outcome.last) = (record.first, record.last);
    outcome.logged_at = record.logged_at;
    outcome.checkpoint = record.checkpoint.or(outcome.checkpoint);
    Ok(outcome)
}

/// Notes in the manifest how an attempt ended.
fn note_end(manifest: &mut Manifest, plan: &Plan, ended: &Result<(Ending, u64, Record)>) {
    match ended {
        Ok((ending, _, record)) => {
            manifest.end(if *ending == Ending::Finished { FINISHED } else { PREEMPTED });
            manifest.set_outcome(plan, record);
        }
        Err(error) => manifest.end(&error.to_string()),
    }
}

/// The warnings that lie in the starts of a run, of which the last begins now: what is not known of earlier ones, why bits may differ, and
/// which checkpoints of others that it needs could not be marked.
fn of_starts(
    phase: Phase<'_>,
    options: &RunOptions,
    folder: &RunFolder,
    manifest: &Manifest,
) -> Vec<String> {
    let is_lost = matches!(&manifest.attempts[..], [first] if first.resumed_from.is_some());
    // A step that is computed again goes on from another run's checkpoint, without its manifest.
    let lost = (is_lost && options.rerun.is_none()).then(|| {
        let folder = folder.path.display();
        format!(
            "`{folder}` has checkpoints and no manifest.json: the new one says neither how earlier steps were computed nor what they \
             began with"
        )
    });
    let settled = |stage: Option<&str>| {
        let named = phase.stages.iter().find(|plan| phase_name(plan).as_deref() == stage);
        rounding(named.unwrap_or(phase.plan))
    };
    let reasons = options.rerun.iter().flat_map(|again| again.reasons(manifest));
    let reasons = reasons.map(|reason| format!("{reason}: bits may differ"));
    let marked = options.dump.is_none().then(|| needs::mark(phase.plan, manifest, &folder.path));
    let others = resumes_otherwise(manifest, settled).into_iter().chain(reasons);
    lost.into_iter().chain(others).chain(marked.into_iter().flatten()).collect()
}

/// Rank 0's recorder, and whether the step to resume from still lacks its evaluation.
fn recorder<'a>(
    plan: &'a Plan,
    console: &'a mut (dyn Sink + Send),
    folder: &RunFolder,
    work: &Work,
    manifest: &Manifest,
) -> Result<(Recorder<'a>, bool)> {
    let start = &work.start;
    let failed = |error| failure("write to", &folder.path, &error);
    let resumed = manifest.attempts.last().and_then(|attempt| attempt.resumed_from);
    // Steps of earlier attempts that are part of the run; those of the run that it was forked from are not in its folder.
    let held = resumed.unwrap_or(0);
    let (lines, kept) = Lines::resume(&folder.path, resumed).map_err(failed)?;
    traces::drop_after(&folder.path, held).map_err(failed)?;
    let owes = !kept.iter().any(|line| line.is_evaluated_at(start.step));
    let parameters = start.weights.parameters();
    let curves = curves(plan, folder, resumed, manifest, parameters).map_err(failed)?;
    let mut recorder = Recorder {
        plan,
        output: folder.path.clone(),
        claim: folder.claim.clone(),
        lines,
        curves,
        hashes: HashLines::wanted(&plan.experiment, held).map_err(failed)?,
        console: Console::new(console),
        record: Record::of(&kept),
        data: manifest.data.clone(),
        texts: Texts::of(plan)?,
        base: base_of(plan).map(annulus_model::fingerprint).transpose()?,
        began: (start.step, start.tokens),
        saved: start.step,
        refused: work.refused.clone(),
        needed: BTreeSet::new(),
        writing: None,
        warned: false,
    };
    recorder.console.notice(&started(plan, start.step, manifest, parameters));
    Ok((recorder, owes))
}

/// TensorBoard's curves of a run that resumed from a step, or begins.
fn curves(
    plan: &Plan,
    folder: &RunFolder,
    resumed: Option<u64>,
    manifest: &Manifest,
    parameters: u64,
) -> io::Result<Curves> {
    let experiment = &plan.experiment;
    let mut curves = Curves::create(&folder.path, resumed, experiment.every.ranks)?;
    if resumed.is_some() {
        curves.go_on(manifest)?;
    } else {
        curves.begin(experiment, &identity::resolved_text(plan), manifest, parameters)?;
    }
    curves.flush()?;
    Ok(curves)
}

/// The notice that the run begins, or resumes, after `step`.
fn started<'a>(plan: &'a Plan, step: u64, manifest: &'a Manifest, parameters: u64) -> Notice<'a> {
    Notice::Start {
        step,
        stage: plan.experiment.phase().map(|stage| (stage.name.as_str(), stage.tokens)),
        last: plan.experiment.last_step(),
        ranks: plan.ranks.len(),
        strategy: manifest.strategy(),
        parameters,
    }
}

impl<'a> Attempt<'a> {
    /// Takes the peak that an earlier start on `machine` measured, else notes its own there.
    fn settle_peak(&mut self, machine: &mut Machine) {
        machine.peak = machine.peak.or(self.peak.map(|peak| peak.round() as u64));
        self.peak = machine.peak.map(|peak| peak as f64);
    }

    /// The attempt of this process's ranks; `recorder` is given where rank 0 is one of them.
    pub(crate) fn new(
        plan: &'a Plan,
        setup: &Arc<Setup>,
        options: &RunOptions,
        work: Work,
        recorder: Option<Recorder<'a>>,
    ) -> Result<Attempt<'a>> {
        let Work { data, start, process, store, begins, .. } = work;
        let here = options.here(setup)?;
        Ok(Attempt {
            plan,
            setup: setup.clone(),
            room: Room::of(plan, options.cores, here.clone(), process.base),
            data,
            stop: options.stop.clone(),
            world: options.world.clone(),
            peak: setup.peak(options.cores)?,
            process,
            start: Handout::new(start, here),
            store,
            begins,
            owes: false,
            dump: options.dump.clone(),
            recorder: Mutex::new(recorder),
        })
    }
}
