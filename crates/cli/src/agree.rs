//! `annulus agree`: the same steps over processes that MPI joins and over threads of one, to the bit.

use std::env;
use std::ffi::OsString;
use std::sync::atomic::AtomicBool;

use annulus_comm::World;
use annulus_comm::flight::{EARLY, Verdict};
use annulus_experiment::{Experiment, Override, parse, read_experiment};
use annulus_plan::{Plan, label, wrapped};
use annulus_sequence::Strategy;
use annulus_train::{Bits, bits};
use serde_json::json;

use crate::arguments::{Agree, Engine, File};
use crate::console::{Meter, Unit};
use crate::failure::{EXPECT, Failure};
use crate::launch::{self, Starting};
use crate::processes::{self, End};
use crate::{Done, hub, post_mortem, print};

/// What is trained in one way.
struct Trial {
    name: String,
    plan: Plan,
}

/// What was found of it.
struct Found {
    name: String,
    joined: Bits,
    threads: Bits,
}

pub(crate) fn run(arguments: &Agree) -> Done {
    if ![Engine::Threads, Engine::Mpi].iter().all(|engine| arguments.engines.contains(engine)) {
        let message = "one engine has nothing to agree with";
        return Err(Failure::usage(message, "name both: `--engines threads,mpi`"));
    }
    let world = processes::found()?;
    match world.processes() {
        1 => started(arguments),
        _ => Ok(processes::ended(&world, agree(arguments, &world))),
    }
}

/// Starts this command in several processes, which compare.
fn started(arguments: &Agree) -> Done {
    let processes = arguments.processes.unwrap_or(2);
    // One of a job that has one: it would start itself for ever.
    if processes == 1 || env::var_os(EARLY).is_some() {
        let message = "there is one process: nothing to agree with";
        return Err(Failure::usage(message, "start several: `annulus agree FILE -n 2`"));
    }
    // A mistake is said here, not by processes and their launcher.
    let File { file, replacements } = &arguments.file;
    split(&file.display().to_string(), &read_experiment(file)?, replacements)?;
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    // Nothing is saved: a signal ends this process, and the launcher with it.
    let never = AtomicBool::new(false);
    let ended = launch::job(&Starting::of(processes)?, &words, &never)?;
    // What a process fails with, it says itself.
    if let Some(wreck) = ended.wreck
        && let lost @ Verdict::Lost { .. } = wreck.verdict()
    {
        print::say(&post_mortem::told(&wreck, &lost));
    }
    Ok(ended.code)
}

fn agree(arguments: &Agree, world: &World) -> Result<u8, End> {
    let trials = processes::shared(world, || trials(arguments, world))?;
    processes::say(world);
    let (meter, mut all) = (Meter::new(Unit::Number), Vec::new());
    for (number, trial) in trials.iter().enumerate() {
        if world.process() == 0 {
            meter.show("ways tried", number as u64, trials.len() as u64);
        }
        let cores = annulus_machine::cores();
        let joined = bits(&trial.plan, arguments.steps, cores, world)?;
        let Some(joined) = joined else { continue };
        let threads = bits(&trial.plan, arguments.steps, cores, &World::alone())?;
        let threads = threads.ok_or_else(|| Failure::new(1, "no rank 0", None))?;
        all.push(Found { name: trial.name.clone(), joined, threads });
    }
    meter.finish();
    if world.process() > 0 {
        return Ok(0);
    }
    told(arguments, &all)
}

/// Every strategy and mask on as many ranks as the experiment has.
fn trials(arguments: &Agree, world: &World) -> Result<Vec<Trial>, Failure> {
    let File { file, replacements } = &arguments.file;
    let (name, text) = (file.display().to_string(), read_experiment(file)?);
    let started = world.processes();
    if let Some(wanted) = arguments.processes.filter(|wanted| *wanted != started) {
        let message = format!("`-n {wanted}`, but {started} processes were started");
        return Err(Failure::usage(message, "leave `-n` out: the launcher says how many"));
    }
    // What no way can be shared by is said, not left out.
    processes::ranks_on_host(world, &split(&name, &text, replacements)?.mesh)?;
    let mut trials = Vec::new();
    for strategy in Strategy::ALL {
        for (mask, changes) in masks(&name, &text, replacements)? {
            let changes = changes.iter().map(|(key, value)| replaced(key, value));
            let split = replaced("attention.strategy", strategy.name());
            let all =
                replacements.iter().cloned().chain(changes).chain([split]).collect::<Vec<_>>();
            // What cannot be split so is refused alike by all.
            if let Ok(plan) = planned(&name, &text, &all, world) {
                trials.push(Trial { name: format!("{}, {mask}", label(strategy)), plan });
            }
        }
    }
    Ok(trials)
}

fn planned(name: &str, text: &str, changes: &[Override], world: &World) -> Result<Plan, Failure> {
    let mut opened = annulus_train::resolve(parse(name, text, changes)?, &mut hub::bring)?;
    let experiment = &mut opened.resolved.experiment;
    experiment.host.here = processes::ranks_on_host(world, &experiment.mesh)?;
    Ok(opened.plan(annulus_machine::cores())?)
}

/// The experiment in one of the ways that it is split, which it need not name.
fn split(name: &str, text: &str, replacements: &[Override]) -> Result<Experiment, Failure> {
    let ring = replaced("attention.strategy", Strategy::Ring.name());
    Ok(parse(name, text, &[replacements, &[ring]].concat())?)
}

fn replaced(key: &str, value: &str) -> Override {
    Override { key: key.to_owned(), value: value.to_owned() }
}

/// Masks and lengths by name, each as keys of the experiment.
fn masks(
    name: &str,
    text: &str,
    replacements: &[Override],
) -> Result<Vec<(&'static str, Vec<(&'static str, String)>)>, Failure> {
    let experiment = split(name, text, replacements)?;
    let (tokens, ranks) = (experiment.data.tokens, experiment.mesh.sequence);
    let [third, half] = [tokens / 3, tokens / 2].map(|part| part.max(1));
    let rest = tokens.saturating_sub(half + third / 2).max(1);
    let documents = format!("[{half}, {}, {rest}]", (tokens - half - rest).max(1));
    let weights: Vec<String> = (0..ranks).map(|rank| (rank % 3 + 1).to_string()).collect();
    Ok(vec![
        ("causal", Vec::new()),
        ("window", vec![("attention.window", third.to_string())]),
        ("documents", vec![("attention.documents", documents)]),
        ("uneven shares", vec![("mesh.weights", format!("[{}]", weights.join(", ")))]),
    ])
}

/// A line for every way, and whether all are equal.
fn told(arguments: &Agree, all: &[Found]) -> Result<u8, End> {
    let equal = all.iter().filter(|found| found.joined == found.threads).count();
    let loss = |bits: &Bits| bits.losses.last().map(|bits| f64::from_bits(*bits));
    if arguments.json {
        let line = |Found { name, joined, threads }: &Found| {
            let losses = joined.losses == threads.losses;
            let (first, last) = (joined.first == threads.first, joined.last == threads.last);
            json!({ "way": name, "loss": loss(joined), "losses": losses, "first_step": first, "last_step": last })
        };
        let lines: Vec<_> = all.iter().map(line).collect();
        print::line(&json!({ "equal": equal, "of": all.len(), "ways": lines }).to_string())?;
    } else {
        for Found { name, joined, threads } in all {
            let verdict = match (joined.losses == threads.losses, joined == threads) {
                (true, true) => "the same bits",
                (true, false) => "OTHER STATE, the same losses",
                (false, _) => "OTHER LOSSES",
            };
            let loss = loss(joined).unwrap_or(f64::NAN);
            print::line(&format!("  {name:<42} loss {loss:.6}   {verdict}"))?;
        }
        let steps = arguments.steps;
        let text = format!(
            "{equal} of {} ways: losses of {steps} steps, gradients, weights and moments are the same bits over processes as over threads",
            all.len()
        );
        print::line(&wrapped(&text, 2))?;
    }
    Ok(if equal == all.len() && equal > 0 { 0 } else { EXPECT })
}
