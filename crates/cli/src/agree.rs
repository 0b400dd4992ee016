//! `annulus agree`: trains the same steps over processes that MPI joins and over threads of one process, and compares every bit.

use std::env;
use std::ffi::OsString;
use std::sync::atomic::Ordering;

use annulus_comm::World;
use annulus_comm::flight::{EARLY, Verdict};
use annulus_experiment::{
    Experiment, Override, Problems, Schedule, Trace, parse, read_experiment, replacing,
};
use annulus_plan::{Plan, label};
use annulus_sequence::Strategy;
use annulus_text::{count, wrapped};
use annulus_train::{
    Bits, Exit, bits, check_processes_agree, is_run, place_on_devices, resolved_text,
};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::console::{Meter, Unit};
use crate::experiment_file::{ExperimentFile, replaced};
use crate::failure::Failure;
use crate::launch::{self, Starting};
use crate::processes::{self, JobError};
use crate::values::ranks;
use crate::{Done, check, hub, judged, post_mortem, print, stop};

#[derive(Args, Debug)]
pub(crate) struct Agree {
    #[command(flatten)]
    file: ExperimentFile,
    /// What to compare; processes are started if no launcher has started them
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Engine::Threads, Engine::Mpi])]
    engines: Vec<Engine>,
    /// Processes to start; they share the ranks of the experiment evenly [default: 2]
    #[arg(short = 'n', long, value_parser = ranks())]
    processes: Option<usize>,
    /// Optimizer steps for every strategy and mask
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<u64>::new().range(1..=10_000))]
    steps: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How ranks are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Threads of one process
    Threads,
    /// Processes that MPI joins
    Mpi,
    /// Processes that MPI joins and whose tensors are sent by NCCL; one GPU for each
    Nccl,
}

/// The experiment that all trials vary.
struct Base {
    file: ExperimentFile,
    text: String,
    /// Whether nobody wrote the keys of its strategy: it is the resolved experiment of a run, or one of its phases.
    of_run: bool,
}

impl Base {
    /// Reads an experiment, or that of a run's folder.
    fn read(file: &ExperimentFile) -> Result<Base, Failure> {
        let of_run = is_run(&file.file);
        let file = check::experiment_of_run(file);
        Ok(Base { text: read_experiment(&file.file)?, file, of_run })
    }

    /// The experiment with `more` keys replaced; problems name the file `name`.
    fn with(&self, name: &str, more: &[Override]) -> Result<Experiment, Problems> {
        let all = [&self.file.replacements[..], more].concat();
        let all = if self.of_run { replacing(&self.text, &all) } else { all };
        parse(name, &self.text, &all)
    }

    /// The last phase, which is what is trained, as an experiment of its own: masks need fit no other.
    fn of_last_phase(self, last: Experiment) -> Base {
        if last.phase().is_none() {
            return self;
        }
        // Steps to stop at and to trace are counted in the whole run, and nothing is stopped or traced here.
        let schedule = Schedule { stop: None, ..last.schedule };
        let text = Experiment { schedule, trace: Trace::default(), ..last }.to_yaml();
        let file = ExperimentFile { replacements: Vec::new(), ..self.file };
        Base { file, text, of_run: true }
    }

    /// The experiment with the strategy `ring`, since the file need not name one.
    fn split(&self) -> Result<Experiment, Problems> {
        let ring = replaced("attention.strategy", Strategy::Ring.name());
        self.with(&self.file.file.display().to_string(), &[ring])
    }
}

/// One combination of strategy, mask and engine, with its plan.
struct Trial {
    name: String,
    plan: Plan,
}

/// A combination that cannot be tried, and why.
struct Skipped {
    name: String,
    why: String,
}

/// The results of a trial over processes and over threads.
struct Found {
    name: String,
    joined: Bits,
    threads: Bits,
}

pub(crate) fn run(arguments: &Agree) -> Done {
    let carriers = carriers(arguments).count();
    if carriers == 0 || carriers == arguments.engines.len() {
        let message = "one engine has nothing to be compared with";
        let hint = "name threads and another: `--engines threads,mpi`";
        return Err(Failure::usage(message, hint));
    }
    let world = processes::join()?;
    if world.processes() == 1 {
        return started(arguments);
    }
    // There is no state to save first.
    stop::end_at_once()?;
    Ok(processes::finish(&world, agree(arguments, &world)))
}

/// The engines between processes, as values of `mesh.engine`.
fn carriers(arguments: &Agree) -> impl Iterator<Item = &'static str> {
    arguments.engines.iter().filter_map(|engine| match engine {
        Engine::Threads => None,
        Engine::Mpi => Some("mpi"),
        Engine::Nccl => Some("nccl"),
    })
}

/// Starts this command again in several processes, which do the comparison.
fn started(arguments: &Agree) -> Done {
    let processes = arguments.processes.unwrap_or(2);
    // This process was itself started by `launch` as a job of one process: it would start itself for ever.
    if processes == 1 || env::var_os(EARLY).is_some() {
        let message = "there is one process: nothing to compare with";
        return Err(Failure::usage(message, "start several: `annulus agree FILE -n 2`"));
    }
    // Errors in the file are reported here, once, and not by every process.
    Base::read(&arguments.file)?.split()?;
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    // A signal to stop this process is passed on to those that it starts.
    let stop = stop::watch()?;
    let ended = launch::job(&Starting::of(processes)?, &words, &stop)?;
    if ended.code > 0 && stop.load(Ordering::Relaxed) {
        return Ok(Exit::Preempted.code());
    }
    // Processes report their own errors; only a lost one cannot.
    if let Some(wreck) = ended.wreck
        && let lost @ Verdict::Lost { .. } = wreck.verdict()
    {
        print::say(&post_mortem::told(&wreck, &lost));
    }
    Ok(ended.code)
}

fn agree(arguments: &Agree, world: &World) -> Result<u8, JobError> {
    let mut skipped = Vec::new();
    let lead = || {
        let trials;
        (trials, skipped) = self::trials(arguments, world)?;
        let texts: Vec<_> =
            trials.iter().map(|one| (&one.name, resolved_text(&one.plan))).collect();
        let text = json!(texts).to_string();
        Ok((trials, text))
    };
    let trials = processes::led(world, lead, |text| received_trials(text, world))?;
    processes::announce(world);
    let (meter, mut all) = (Meter::new(Unit::Number), Vec::new());
    for (number, trial) in trials.iter().enumerate() {
        if world.process() == 0 {
            meter.show("ways tried", number as u64, trials.len() as u64);
        }
        all.extend(tried(arguments, trial, world)?);
    }
    meter.finish();
    if world.process() > 0 {
        return Ok(0);
    }
    told(arguments, &all, &skipped)
}

/// Runs a trial over processes, then over threads of process 0; `None` in other processes.
fn tried(arguments: &Agree, trial: &Trial, world: &World) -> Result<Option<Found>, JobError> {
    let cores = annulus_machine::cores();
    check_processes_agree(world, Some(&trial.plan), None, &[])?;
    let joined = bits(&trial.plan, arguments.steps, cores, world)?;
    // The other processes wait here and not in the next trial, where the deadline of ranks would end a wait for the threads.
    processes::shared(world, || {
        let Some(joined) = joined else { return Ok(None) };
        let threads = bits(&trial.plan, arguments.steps, cores, &World::alone())?;
        let threads = threads.ok_or_else(|| Failure::internal("no rank 0"))?;
        Ok(Some(Found { name: trial.name.clone(), joined, threads }))
    })
}

/// Whether the experiment would run on GPUs of this machine.
fn is_on_gpus(mut experiment: Experiment) -> bool {
    place_on_devices(&mut experiment);
    experiment.host.gpu_memory.is_some()
}

/// The trials: every strategy, mask and engine on the experiment's number of ranks; and what cannot be tried.
fn trials(arguments: &Agree, world: &World) -> Result<(Vec<Trial>, Vec<Skipped>), Failure> {
    let (base, started) = (Base::read(&arguments.file)?, world.processes());
    if let Some(wanted) = arguments.processes.filter(|wanted| *wanted != started) {
        let message = format!("`-n {wanted}`, but {started} processes were started");
        return Err(Failure::usage(message, "leave `-n` out: the launcher says how many"));
    }
    // Errors that all trials would share are reported once, before any is run.
    let experiment = base.split()?;
    processes::ranks_on_host(world, &experiment.mesh)?;
    let last = experiment.phase_at(u64::MAX);
    let (masks, base) = (masks(&last), base.of_last_phase(last));
    let on_gpus = is_on_gpus(experiment.clone());
    annulus_train::resolve(experiment, &mut hub::description)?;
    let (mut trials, mut skipped, mut refusal) = (Vec::new(), Vec::new(), None);
    for (strategy, (mask, changes), engine) in ways(&masks, arguments) {
        let name = format!("{}, {mask}, {}", label(strategy), engine.value);
        if on_gpus && engine.value == "nccl" && strategy.stores_scores() {
            skipped.push(Skipped { name, why: "no GPU kernel stores scores".to_owned() });
            continue;
        }
        let changes = changes.iter().map(|(key, value)| replaced(key, value));
        let split = replaced("attention.strategy", strategy.name());
        // The experiment may let the backward on a GPU add in a different order each time.
        let more = [split, engine, replaced("attention.deterministic", "true")];
        let all = changes.chain(more).collect::<Vec<_>>();
        let planned = base.with(&name, &all).map_err(Failure::from);
        match planned.and_then(|experiment| planned_over(world, experiment)) {
            Ok(plan) => trials.push(Trial { name, plan }),
            // Not every strategy supports every mask and number of heads.
            Err(refused) => {
                skipped.push(Skipped { name, why: first(&refused) });
                refusal = refusal.or(Some(refused));
            }
        }
    }
    match refusal.filter(|_| trials.is_empty()) {
        Some(refused) => Err(refused),
        None => Ok((trials, skipped)),
    }
}

/// The first of the errors, without its place and hint.
fn first(refused: &Failure) -> String {
    refused.problems.0.first().map(|problem| problem.message.clone()).unwrap_or_default()
}

/// Every strategy but `local`, which runs on one rank, with every mask and engine.
fn ways<'a>(
    masks: &'a [Variation],
    arguments: &'a Agree,
) -> impl Iterator<Item = (Strategy, &'a Variation, Override)> {
    let strategies = Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::Local);
    strategies.flat_map(move |strategy| {
        masks.iter().flat_map(move |mask| {
            let engine = |word| replaced("mesh.engine", word);
            carriers(arguments).map(move |word| (strategy, mask, engine(word)))
        })
    })
}

/// The trials of process 0, read from its resolved experiments: choices that it made are not made again.
fn received_trials(text: &str, world: &World) -> Result<Vec<Trial>, Failure> {
    let unreadable = |error: serde_json::Error| Failure::internal(error.to_string());
    let texts: Vec<(String, String)> = serde_json::from_str(text).map_err(unreadable)?;
    let trial = |(name, text): (String, String)| {
        let plan = planned_over(world, parse(processes::FROM_PROCESS_0, &text, &[])?)?;
        Ok(Trial { name, plan })
    };
    texts.into_iter().map(trial).collect()
}

fn planned_over(world: &World, experiment: Experiment) -> Result<Plan, Failure> {
    let mut opened = annulus_train::resolve(experiment, &mut hub::description)?;
    processes::place(world, &mut opened.resolved.experiment)?;
    Ok(opened.plan(annulus_machine::cores())?)
}

/// A variation of the experiment: its name, and the keys that it sets.
type Variation = (&'static str, Vec<(&'static str, String)>);

/// Variations of masks and of ranks' shards that are tried.
fn masks(experiment: &Experiment) -> [Variation; 4] {
    let (tokens, ranks) = (experiment.data.tokens, experiment.mesh.sequence);
    let weights: Vec<String> = (0..ranks).map(|rank| (rank % 3 + 1).to_string()).collect();
    [
        ("causal", Vec::new()),
        ("window", vec![("attention.window", (tokens / 3).max(1).to_string())]),
        ("documents", vec![("attention.documents", format!("{:?}", documents(tokens)))]),
        ("uneven shards", vec![("mesh.weights", format!("[{}]", weights.join(", ")))]),
    ]
}

/// The lengths of three documents: a half, a sixth and the rest of the sequence. Empty ones are left out, as in very short sequences.
fn documents(tokens: usize) -> Vec<usize> {
    let (half, sixth) = (tokens / 2, tokens / 3 / 2);
    [half, sixth, tokens - half - sixth].into_iter().filter(|length| *length > 0).collect()
}

/// Prints a line for every trial and for everything that was skipped, and whether all trials are equal.
fn told(arguments: &Agree, all: &[Found], skipped: &[Skipped]) -> Result<u8, JobError> {
    let equal = all.iter().filter(|found| found.joined == found.threads).count();
    if arguments.json {
        print::line(&to_json(equal, all, skipped))?;
    } else {
        for Found { name, joined, threads } in all {
            let verdict = match (joined.losses == threads.losses, joined == threads) {
                (true, true) => "the same bits",
                (true, false) => "OTHER STATE, the same losses",
                (false, _) => "OTHER LOSSES",
            };
            let loss = last_loss(joined).unwrap_or(f64::NAN);
            print::line(&format!("  {name:<42} loss {loss:.6}   {verdict}"))?;
        }
        for Skipped { name, why } in skipped {
            print::line(&wrapped(&format!("  {name:<42} skipped: {why}"), 4))?;
        }
        let steps = count(arguments.steps as usize, "step");
        let text = format!(
            "{equal} of {} ways: losses of {steps}, gradients, weights and moments are the same bits over processes as over threads",
            all.len()
        );
        print::line(&wrapped(&text, 2))?;
    }
    Ok(judged(equal == all.len() && equal > 0))
}

fn to_json(equal: usize, all: &[Found], skipped: &[Skipped]) -> String {
    let line = |Found { name, joined, threads }: &Found| {
        let losses = joined.losses == threads.losses;
        let (first, last) = (joined.first == threads.first, joined.last == threads.last);
        json!({ "way": name, "loss": last_loss(joined), "losses": losses, "first_step": first, "last_step": last })
    };
    let lines: Vec<_> = all.iter().map(line).collect();
    let skip = |Skipped { name, why }: &Skipped| json!({ "way": name, "skipped": why });
    let skipped: Vec<_> = skipped.iter().map(skip).collect();
    json!({ "equal": equal, "of": all.len(), "ways": lines, "skipped": skipped }).to_string()
}

fn last_loss(bits: &Bits) -> Option<f64> {
    bits.losses.last().map(|bits| f64::from_bits(*bits))
}

#[cfg(test)]
mod tests {
    use super::documents;

    #[test]
    fn documents_are_the_whole_sequence_however_short() {
        for tokens in 1..100 {
            let lengths = documents(tokens);
            assert_eq!(lengths.iter().sum::<usize>(), tokens, "{lengths:?}");
            assert!(!lengths.contains(&0), "{lengths:?}");
        }
        assert_eq!(documents(37), [18, 6, 13]);
    }
}
