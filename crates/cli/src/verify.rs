//! `annulus verify`: compares every strategy with dense attention, on an experiment's shape and mask.

use std::collections::BTreeMap;

use annulus_comm::World;
use annulus_experiment::parse;
use annulus_plan::Plan;
use annulus_sequence::Strategy;
use annulus_simulate::plan;
use annulus_text::wrapped;
use annulus_train::verify::{Line, verify};
use annulus_train::{Setup, check_processes_agree, resolved_text};
use clap::Args;
use serde_json::json;

use crate::console::{Meter, Unit};
use crate::experiment_file::ExperimentFile;
use crate::failure::Failure;
use crate::processes::{self, JobError};
use crate::values::ranks;
use crate::{Done, check, hub, judged, print};

#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    file: ExperimentFile,
    /// Largest number of ranks to try
    #[arg(long, default_value_t = 8, value_parser = ranks())]
    ranks: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Verify) -> Done {
    let world = processes::join()?;
    Ok(processes::finish(&world, held(arguments, &world)))
}

fn held(arguments: &Verify, world: &World) -> Result<u8, JobError> {
    let lead = || {
        let mut opened = check::opened(&arguments.file)?;
        // Strategies split sequences; tensor-parallel ranks play no part.
        opened.resolved.experiment.mesh.tensor = 1;
        let plan = plan(&opened.here())?;
        let text = resolved_text(&plan);
        Ok((plan, text))
    };
    let follow = |text: &str| {
        let told = parse(processes::FROM_PROCESS_0, text, &[])?;
        Ok(plan(&annulus_train::resolve(told, &mut hub::description)?.here())?)
    };
    let plan = processes::led(world, lead, follow)?;
    check_processes_agree(world, Some(&plan), None, &[])?;
    let setup = processes::shared(world, || {
        Ok(Setup::on_its_device_over(world, &plan, annulus_machine::cores())?)
    })?;
    if world.process() > 0 {
        let lines = verify(&plan, &setup, arguments.ranks, &mut |_| ())?;
        return Ok(judged(are_exact(&lines)));
    }
    processes::announce(world);
    shown(arguments, &plan, &setup)
}

/// Verifies, and prints every line as soon as it is known.
fn shown(arguments: &Verify, plan: &Plan, setup: &Setup) -> Result<u8, JobError> {
    let mut table = Table::default();
    let mut written = Ok(());
    let (total, mut done) = (ways(plan, arguments.ranks, &setup.processes), 0);
    let tokens = plan.experiment.data.tokens;
    print::say(&format!(
        "dense attention first, then {total} ways to split {tokens} tokens compared with it, {}",
        computed(setup)
    ));
    let meter = Meter::new(Unit::Number);
    meter.show("ways tried", 0, total);
    let lines = verify(plan, setup, arguments.ranks, &mut |line| {
        if written.is_ok() {
            let show =
                || if arguments.json { print::line(&as_json(line)) } else { table.show(line) };
            written = meter.beside(show);
        }
        if is_last(line) {
            done += 1;
            meter.show("ways tried", done, total.max(done));
        }
    })?;
    meter.finish();
    written?;
    let worst = lines.iter().filter_map(share).fold(0.0, f64::max);
    let ok = are_exact(&lines);
    let value = || json!({"worst": finite(worst), "limit": 1.0, "ok": ok});
    let verdict = if ok { "exact" } else { "NOT EXACT" };
    let text = || format!("{verdict}: the worst error is {worst:.2} of its limit");
    print::either(arguments.json, value, text)?;
    Ok(judged(ok))
}

/// What ranks compute on, and in which dtype.
fn computed(setup: &Setup) -> String {
    match setup.processors.devices() {
        _ if setup.processors.is_empty() => "on the CPU in f32".to_owned(),
        1 => format!("on a GPU in {}", setup.config.dtype.as_str()),
        many => format!("on {many} GPUs in {}", setup.config.dtype.as_str()),
    }
}

/// How many combinations of strategy and ranks are tried. The experiment's own may be one more.
fn ways(plan: &Plan, most: usize, world: &World) -> u64 {
    let runs = |strategy: &Strategy| {
        let shared = (1..=most).filter(|ranks| world.here(*ranks).is_some());
        shared.filter(|&ranks| strategy.check(ranks, plan.heads()).is_ok()).count() as u64
    };
    Strategy::ALL.iter().map(runs).sum()
}

/// Whether a line is the last one of a combination.
fn is_last(line: &Line) -> bool {
    matches!(line, Line::Error { tensor, .. } if tensor.starts_with(GRADIENT))
}

/// The beginning of the name of the tensor that is compared last.
const GRADIENT: &str = "gradient";

/// An error as a fraction of its limit.
fn share(line: &Line) -> Option<f64> {
    match line {
        Line::Error { error, limit, .. } => Some(error / limit),
        Line::Skipped { .. } => None,
    }
}

fn are_exact(lines: &[Line]) -> bool {
    lines.iter().filter_map(share).all(|share| share <= 1.0)
}

/// A number for JSON, which has no infinity: the largest number stands for it.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { f64::MAX }
}

fn as_json(line: &Line) -> String {
    match line {
        Line::Error { strategy, ranks, own, tensor, error, limit } => json!({
            "strategy": strategy.name(), "ranks": ranks, "own": own, "tensor": tensor,
            "error": finite(*error), "limit": limit,
        }),
        Line::Skipped { strategy, ranks, own, reason } => {
            json!({"strategy": strategy.name(), "ranks": ranks, "own": own, "skipped": reason})
        }
    }
    .to_string()
}

/// A strategy's name, with a star if it is the experiment's own.
fn named(strategy: &str, own: bool) -> String {
    format!("{strategy}{}", if own { "*" } else { "" })
}

/// Prints a row per strategy and number of ranks once its last line is known.
#[derive(Default)]
struct Table {
    started: bool,
    row: BTreeMap<String, f64>,
}

impl Table {
    /// For each column the tensor, the heading and the width: 80 characters together.
    const COLUMNS: [(&str, &str, usize); 8] = [
        ("out", "out", 8),
        ("lse", "lse", 8),
        ("dq", "dq", 8),
        ("dk", "dk", 8),
        ("dv", "dv", 8),
        ("visibility", "seen", 7),
        ("loss", "loss", 8),
        (GRADIENT, "params", 8),
    ];

    fn show(&mut self, line: &Line) -> Result<(), Failure> {
        self.begin()?;
        match line {
            Line::Error { strategy, ranks, own, tensor, error, .. } => {
                let tensor = tensor.split(' ').next().unwrap_or(tensor);
                let worst = self.row.entry(tensor.to_owned()).or_default();
                *worst = worst.max(*error);
                if tensor == GRADIENT {
                    self.end(&named(strategy.name(), *own), *ranks)?;
                }
            }
            Line::Skipped { strategy, ranks, own, reason } => {
                let name = named(strategy.name(), *own);
                let line = format!("{name:<12}{ranks:>5}  skipped: {reason}");
                print::line(&wrapped(&line, 19))?;
            }
        }
        Ok(())
    }

    /// Prints the heading, once.
    fn begin(&mut self) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.started, true) {
            print::line(
                "errors by strategy and ranks; seen: the keys that each query attends to;\n\
                 params: the worst gradient of a parameter",
            )?;
            let columns = Self::COLUMNS.map(|(_, name, width)| format!("{name:>width$}")).concat();
            print::line(&format!("{:<12}{:>5}{columns}", "strategy", "ranks"))?;
        }
        Ok(())
    }

    /// Prints the row of one strategy on a number of ranks.
    fn end(&mut self, strategy: &str, ranks: usize) -> Result<(), Failure> {
        let cells = Self::COLUMNS.map(|(tensor, _, width)| match self.row.get(tensor) {
            Some(error) => format!("{error:>width$.1e}"),
            None => format!("{:>width$}", "-"),
        });
        self.row.clear();
        print::line(&format!("{strategy:<12}{ranks:>5}{}", cells.concat()))
    }
}
