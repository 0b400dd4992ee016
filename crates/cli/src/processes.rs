//! Commands that run in several processes, started by an MPI launcher.

use std::env;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use annulus_comm::flight::EARLY;
use annulus_comm::{BEGINS_WITHIN, Cause, Facts, Failure as GroupFailure, Unjoined, World};
use annulus_experiment::{Experiment, Mesh, Problems};
use annulus_machine::Instructions;
use annulus_train::{Exit, Manifest, TrainError, cores_here};

use crate::arguments::Command;
use crate::failure::Failure;
use crate::{Done, print};

/// How long all processes but the first wait before they report that they cannot be joined.
const SAID: Duration = Duration::from_secs(1);

/// How a command failed that runs in several processes.
pub(crate) enum JobError {
    /// In this process.
    Here(Failure),
    /// In another process, which reports why.
    Elsewhere(Failure),
}

impl JobError {
    /// Whether a process, or what joins them, does not answer.
    pub(crate) fn is_of_lost_process(&self) -> bool {
        let (JobError::Here(failure) | JobError::Elsewhere(failure)) = self;
        [Exit::Deadline, Exit::RankDied].contains(&failure.exit)
    }
}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> JobError {
        JobError::Here(failure)
    }
}

impl From<TrainError> for JobError {
    fn from(error: TrainError) -> JobError {
        let of_another = error.is_of_another();
        let failure = Failure::from(error);
        if of_another { JobError::Elsewhere(failure) } else { JobError::Here(failure) }
    }
}

/// The processes of this job, or this one alone. All of them are made to compute with the same vector instructions.
pub(crate) fn join() -> Result<World, Failure> {
    join_noting(&|| ())
}

/// [`join`], which calls `begun` once the processes are there.
pub(crate) fn join_noting(begun: &dyn Fn()) -> Result<World, Failure> {
    let world = joined(begun)?;
    if world.processes() > 1 {
        settle(&world)?;
    }
    Ok(world)
}

/// Selects the best vector instructions that all processes have, since sums have different bits with different instructions.
fn settle(world: &World) -> Result<(), Failure> {
    let own: Vec<&str> = annulus_machine::usable().into_iter().map(Instructions::word).collect();
    let all = world.gather(own.join(" ").as_bytes()).map_err(unreached)?;
    let all: Vec<String> =
        all.iter().map(|one| String::from_utf8_lossy(one).into_owned()).collect();
    let has = |word: &str| all.iter().all(|words| words.split(' ').any(|one| one == word));
    // All have the last one of the list.
    let Some(best) = Instructions::ALL.into_iter().find(|one| has(one.word())) else {
        return Ok(());
    };
    let others = all.iter().any(|words| !words.starts_with(best.word()));
    if others && world.process() == 0 {
        let word = best.word();
        print::say(&format!("vector instructions are `{word}`, which all processes have"));
    }
    // If this fails, the run fails before its first step, where the instructions of all processes are compared.
    let _ = annulus_machine::settle_for(best);
    Ok(())
}

fn joined(begun: &dyn Fn()) -> Result<World, Failure> {
    World::init(begun).map_err(|unjoined| match unjoined {
        Unjoined::Engine(error) => not_joined(error.what, error.why),
        Unjoined::Apart(failure) => unreached(failure),
        Unjoined::Late(_) => {
            let hint = format!("start it again, or set {BEGINS_WITHIN} to more seconds");
            Failure { exit: Exit::Deadline, ..not_joined(unjoined.to_string(), hint) }
        }
    })
}

/// The error that the processes cannot reach each other. One that knows why says it; who only saw it end leaves it the time to.
fn unreached(failure: GroupFailure<annulus_comm::Error>) -> Failure {
    let what = "the processes do not reach each other";
    match failure.cause {
        Cause::Elsewhere => {
            std::thread::sleep(2 * SAID);
            said_once(Failure::new(Exit::RankDied, what, Some(failure.to_string())))
        }
        Cause::Error(error) => {
            let error = TrainError::from(error);
            said_once(Failure::new(error.exit(), format!("{what}: {error}"), error.hint()))
        }
        Cause::Panic(why) => {
            said_once(Failure::new(Exit::RankDied, format!("{what}: {why}"), None))
        }
    }
}

/// An error that every process has, reported by one of them. Others wait, because a launcher may end them as soon as the first one
/// has ended; under `annulus launch` a file in the folder of the job shows that it was reported.
fn not_joined(message: String, hint: String) -> Failure {
    if World::number() > 0 {
        std::thread::sleep(SAID);
    }
    said_once(Failure::usage(message, hint))
}

/// A failure to join, without its words where another process of the job has said its own.
fn said_once(failure: Failure) -> Failure {
    let word = env::var_os(EARLY).map(|folder| Path::new(&folder).join("not-joined"));
    let left = word.map(|word| File::options().write(true).create_new(true).open(word));
    if matches!(left, Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists) {
        return Failure { problems: Problems(Vec::new()), ..failure };
    }
    failure
}

/// Whether a launcher of MPI started this process as one of several, and not as the first, which says what there is to say of a command
/// line: a launcher nearly always gives all processes the same one.
pub(crate) fn is_another() -> bool {
    World::number() > 0 && World::launched().is_ok_and(|started| started != Some(1))
}

/// Whether a command can run in several processes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The processes share its ranks.
    Shared,
    /// It runs in one process.
    Alone,
    /// It runs in one process and starts others itself.
    Launcher,
}

/// The error of a command that runs in one process when a launcher started several; process 0 reports it. `None` if it may run.
pub(crate) fn refused(sharing: Sharing) -> Option<Done> {
    let started = match World::launched() {
        Ok(started) => started,
        // Every process would start a job of its own.
        Err(error) if sharing == Sharing::Launcher => {
            return Some(Err(not_joined(error.what, error.why)));
        }
        Err(_) => Some(1),
    };
    if started == Some(1) || sharing == Sharing::Shared {
        return None;
    }
    let started = started.map_or_else(|| "several".to_owned(), |count| count.to_string());
    let message = format!("{started} processes were started, but this command works in one");
    let shared = Command::SHARED.map(|name| format!("`{name}`"));
    let (last, others) = shared.split_last().expect("some commands are shared");
    let others = others.join(", ");
    let hint =
        format!("start it without `mpirun`; {others} and {last} share their ranks among processes");
    let failure = Failure::usage(message, hint);
    Some(match join() {
        Err(_) => Err(failure),
        Ok(world) if world.process() > 0 => Ok(finish(&world, Err(JobError::Elsewhere(failure)))),
        Ok(world) => Ok(finish(&world, Err(JobError::Here(failure)))),
    })
}

/// The ranks on this machine; `None` if there is one process.
pub(crate) fn ranks_on_host(world: &World, mesh: &Mesh) -> Result<Option<Range<usize>>, Failure> {
    let here = || annulus_train::ranks_on_host(world, mesh.ranks());
    Ok((world.processes() > 1).then(here).transpose()?)
}

/// Tells an experiment how many processes there are, and which ranks are on this machine.
pub(crate) fn place(world: &World, experiment: &mut Experiment) -> Result<(), Failure> {
    experiment.host.here = ranks_on_host(world, &experiment.mesh)?;
    experiment.host.processes = world.processes();
    Ok(())
}

/// Tells an experiment how many processes computed it in the last start of a run, and which ranks were on the first host.
pub(crate) fn place_as(manifest: Option<&Manifest>, experiment: &mut Experiment) {
    let last = manifest.and_then(|manifest| manifest.attempts.last());
    let Some(all @ [first, ..]) = last.map(|last| &*last.processes) else { return };
    let beside = all.iter().take_while(|process| process.host == first.host);
    experiment.host.here = Some(0..beside.map(|process| process.ranks.len()).sum());
    experiment.host.processes = all.len();
}

/// Prints how many processes run on which hosts, and which library joins them.
pub(crate) fn announce(world: &World) {
    if let Some(Facts { process: 0, processes, library, .. }) = world.facts() {
        let places = world.rank_hosts(*processes);
        let hosts: Vec<&str> = places.hosts().iter().map(|on| on.host).collect();
        print::say(&format!("{processes} processes on {}, joined by {library}", hosts.join(", ")));
    }
}

/// Sends the resolved experiment to the other processes; on `None` they end.
pub(crate) fn send(world: &World, text: Option<&str>) -> Result<(), JobError> {
    world.gather(text.unwrap_or_default().as_bytes()).map(drop).map_err(end)
}

/// Has every process make a value by itself; if one fails, all end.
pub(crate) fn shared<T>(
    world: &World,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, JobError> {
    annulus_train::shared(world, || {
        make().map_err(|failure| JobError::Here(of_process(world, failure)))
    })
}

/// Names this process in its error, unless it is process 0: the others may not have the same.
fn of_process(world: &World, mut failure: Failure) -> Failure {
    let process = world.process();
    if let Some(problem) = failure.problems.0.first_mut().filter(|_| process > 0) {
        problem.message = format!("{}: {}", world.process_on_host(process), problem.message);
    }
    failure
}

/// Has every process make a value by itself, process 0 before the others, which then find what it downloaded or cached; if one fails,
/// all end.
pub(crate) fn in_turn<T>(
    world: &World,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, JobError> {
    if world.process() > 0 {
        shared(world, || Ok(()))?;
        return shared(world, make);
    }
    let made = shared(world, make)?;
    shared(world, || Ok(made))
}

/// Has process 0 open something and send its resolved experiment, by which the others open the same.
pub(crate) fn led<T>(
    world: &World,
    lead: impl FnOnce() -> Result<(T, String), Failure>,
    follow: impl FnOnce(&str) -> Result<T, Failure>,
) -> Result<T, JobError> {
    if world.process() > 0 {
        let text = receive(world)?;
        return shared(world, || follow(&text));
    }
    let led = lead();
    let told = send(world, led.as_ref().ok().map(|(_, text)| text.as_str()));
    // The error that is reported is `lead`'s, not that the others could not be told.
    let (made, _) = led?;
    told?;
    shared(world, || Ok(made))
}

/// The name of process 0's experiment in errors of the others, in place of a file's.
pub(crate) const FROM_PROCESS_0: &str = "the experiment of process 0";

/// This process's share of the machine's cores.
pub(crate) fn cores(world: &World) -> usize {
    cores_here(world, annulus_machine::cores())
}

/// Receives the resolved experiment of process 0.
pub(crate) fn receive(world: &World) -> Result<String, JobError> {
    let said = world.gather(&[]).map_err(end)?;
    let text = said.first().map(|text| String::from_utf8_lossy(text).into_owned());
    text.filter(|text| !text.is_empty())
        .ok_or_else(|| JobError::Elsewhere(Failure::internal("process 0 has no experiment")))
}

fn end(failure: GroupFailure<annulus_comm::Error>) -> JobError {
    match failure.cause {
        Cause::Error(error) => TrainError::from(error).into(),
        cause => JobError::Elsewhere(Failure::internal(cause.to_string())),
    }
}

/// Ends the job: reports what failed here, and returns the exit code of the process at fault.
pub(crate) fn finish(world: &World, done: Result<u8, JobError>) -> u8 {
    let (code, why) = match done {
        Ok(code) => (code, None),
        // The job's code is that of the process at fault, unless that one falls silent before it has said it.
        Err(JobError::Elsewhere(_)) if world.processes() > 1 => (Exit::RankDied.code(), None),
        Err(JobError::Here(failure) | JobError::Elsewhere(failure)) => {
            // If several fail for the same reason, one reports it.
            let code = failure.exit.code();
            let why = world.is_first_to_fail(i32::from(code)).then(|| {
                let why = failure.problems.to_string();
                print::say(&why);
                why
            });
            (code, why)
        }
    };
    let code = world.end(i32::from(code), why.as_deref());
    u8::try_from(code).unwrap_or(Exit::Internal.code())
}
