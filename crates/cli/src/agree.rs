//! `annulus agree`: the same steps over processes that MPI joins and over threads of one, to the bit.

use annulus_comm::World;
use annulus_experiment::{Override, parse, read_experiment};
use annulus_plan::{Plan, label, wrapped};
use annulus_sequence::Strategy;
use annulus_train::{Bits, bits};
use serde_json::json;

use crate::arguments::{Agree, File};
use crate::console::{Meter, Unit};
use crate::failure::{EXPECT, Failure};
use crate::processes::{self, End};
use crate::{Done, hub, print};

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
    let world = processes::found()?;
    if world.processes() == 1 {
        let message = "there is one process: nothing to agree with";
        let hint = "start several: `mpirun -n 2 annulus agree FILE`";
        return Err(Failure::usage(message, hint));
    }
    Ok(processes::ended(&world, agree(arguments, &world)))
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

fn replaced(key: &str, value: &str) -> Override {
    Override { key: key.to_owned(), value: value.to_owned() }
}

/// Masks and lengths by name, each as keys of the experiment.
fn masks(
    name: &str,
    text: &str,
    replacements: &[Override],
) -> Result<Vec<(&'static str, Vec<(&'static str, String)>)>, Failure> {
    let ring = replaced("attention.strategy", Strategy::Ring.name());
    let replacements = [replacements, &[ring]].concat();
    let experiment = parse(name, text, &replacements)?;
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
