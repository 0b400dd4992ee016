//! `cargo xtask bench engines`: measures attention over threads of one process and over processes of MPICH and Open MPI, a message
//! between two processes with our engine and with MPI alone, and the memory of processes next to their plan.
//!
//! Every round measures all ways in turn, so that disturbances affect all of them.

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::Value;

use crate::hosts::{Hop, Report, Samples, Threshold, lines};
use crate::{setup, tool};

/// The time of two processes of two ranks, relative to one process of four.
const SPLIT: Threshold = Threshold::AtMost(1.10);
/// The time that a header adds to a message, relative to it.
const HEADER: Threshold = Threshold::AtMost(0.02);
/// The relative difference of a process's memory from its plan.
const RESIDENT: Threshold = Threshold::AtMost(0.10);
const RANKS: usize = 4;

#[derive(Parser)]
#[command(name = "cargo xtask bench engines")]
struct Arguments {
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Samples of each way in a round
    #[arg(long, default_value_t = 3)]
    samples: usize,
    /// Positions of the sequence
    #[arg(long, default_value = "8k")]
    tokens: String,
    /// Bytes of a message
    #[arg(long, default_value = "1M")]
    bytes: String,
    /// Measure memory only
    #[arg(long)]
    memory: bool,
}

/// How ranks are distributed over processes.
#[derive(Clone, Copy)]
struct Way {
    /// The launcher's folder below `target/python`; `None` for one process without a launcher.
    mpi: Option<&'static str>,
    processes: usize,
}

const MPICH: Option<&str> = Some("mpich");
const OPEN_MPI: Option<&str> = Some("openmpi");
/// The ways; others are compared with the first.
const WAYS: [Way; 5] = [
    Way { mpi: None, processes: 1 },
    Way { mpi: MPICH, processes: 2 },
    Way { mpi: OPEN_MPI, processes: 2 },
    Way { mpi: MPICH, processes: 4 },
    Way { mpi: OPEN_MPI, processes: 4 },
];

/// Measures, prints tables, and fails if a threshold is missed.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let name = OsString::from("cargo xtask bench");
    let arguments = Arguments::parse_from([name].iter().chain(&words[1..]));
    setup::mpi()?;
    tool::build_measuring()?;
    let mut report = Report::default();
    memory(&mut report)?;
    if arguments.memory {
        return Ok(report.end());
    }
    attention(&arguments, &mut report)?;
    for mpi in ["mpich", "openmpi"] {
        hop(&arguments, mpi, &mut report)?;
    }
    Ok(report.end())
}

fn attention(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let Arguments { rounds, samples, tokens, .. } = arguments;
    let mut found: Vec<Option<Samples>> = vec![None; WAYS.len()];
    for _ in 0..*rounds {
        for (way, samples_of) in WAYS.iter().zip(&mut found) {
            let threads = (annulus_machine::cores() / way.processes).max(1);
            let words = format!(
                "--ranks {RANKS} --threads {threads} --tokens {tokens} --samples {samples}"
            );
            let more = Samples::of(&way.measure(&words)?, "together")?;
            match samples_of {
                Some(all) => all.join(more),
                None => *samples_of = Some(more),
            }
        }
    }
    let found: Vec<Samples> = found.into_iter().flatten().collect();
    tool::print(&format!("\nattention forward and backward, {tokens} tokens, {RANKS} ranks"));
    tool::print(
        "| processes x ranks | by | milliseconds: median (range) | relative to one process |",
    );
    tool::print("| --- | --- | --- | --- |");
    let one = found[0].median();
    for (way, samples) in WAYS.iter().zip(&found) {
        let (processes, each) = (way.processes, RANKS / way.processes);
        let (shown, ratio) = (samples.shown(1e-3), samples.median() / one);
        let by = way.mpi.unwrap_or("threads");
        tool::print(&format!("| {processes} x {each} | {by} | {shown} | {ratio:.3} |"));
    }
    for (way, samples) in WAYS.iter().zip(&found).filter(|(way, _)| way.processes == 2) {
        let what = format!("{}: 2 x 2 over one process", way.mpi.unwrap_or_default());
        report.check(&what, samples.median() / one, SPLIT);
    }
    Ok(())
}

/// Measures planned, counted and resident memory of processes over some steps of a model of 13 million parameters.
fn memory(report: &mut Report) -> Result<()> {
    tool::print(&format!("\nmemory of a training, {RANKS} ranks; MiB"));
    tool::print(
        "| processes x ranks | by | ranks planned | counted | itself | resident | relative to plan |",
    );
    tool::print("| --- | --- | --- | --- | --- | --- | --- |");
    for way in WAYS {
        let threads = (annulus_machine::cores() / way.processes).max(1);
        let model = "--tokens 2k --layers 16 --steps 3";
        let words = format!("--ranks {RANKS} --threads {threads} {model}");
        let line = way.started("memory", &words)?;
        let (processes, each) = (way.processes, RANKS / way.processes);
        let by = way.mpi.unwrap_or("threads");
        let list = |key: &str| line[key].as_array().cloned().unwrap_or_default();
        let (ranks, held) = (list("by_rank"), list("by_process"));
        for (process, held) in held.iter().enumerate() {
            let sum = |key: &str| -> f64 {
                let of_rank = |rank: &Value| rank[key].as_f64().unwrap_or(f64::NAN);
                ranks[process * each..(process + 1) * each].iter().map(of_rank).sum()
            };
            let at = |key: &str| held[key].as_f64().unwrap_or(f64::NAN);
            let ratio = at("resident") / at("planned");
            let shown = [sum("planned_together"), sum("together"), at("base"), at("resident")];
            let shown = shown.map(|bytes| format!("{:.1}", bytes / f64::from(1 << 20)));
            let shown = shown.join(" | ");
            tool::print(&format!("| {processes} x {each} | {by} | {shown} | {ratio:.3} |"));
            let what =
                format!("{by}: process {process} of {processes}, relative error of its plan");
            report.check(&what, (ratio - 1.0).abs(), RESIDENT);
        }
    }
    Ok(())
}

/// Measures a message between two processes, in both directions at once.
fn hop(arguments: &Arguments, mpi: &'static str, report: &mut Report) -> Result<()> {
    let Arguments { rounds, samples, bytes, .. } = arguments;
    let way = Way { mpi: Some(mpi), processes: 2 };
    let mut found: Option<Hop> = None;
    for _ in 0..*rounds {
        let words = format!("--bytes {bytes} --samples {samples}");
        let raw = way.measure(&format!("--measure raw {words}"))?;
        let ours = way.measure(&format!("--measure hop {words}"))?;
        let more = Hop::of(&raw, &ours)?;
        match &mut found {
            Some(all) => all.join(more),
            None => found = Some(more),
        }
    }
    let hop = found.context("no rounds")?;
    hop.print(&format!("a message of {bytes} bytes both ways between two processes, {mpi}"));
    report.check(&format!("{mpi}: a header, relative to the hop"), hop.header(), HEADER);
    // Through shared memory a transfer takes no longer than reading the bytes once or twice, so checksums have no limit here, only over a
    // link.
    let checksums = hop.checksums();
    tool::print(&format!("{mpi}: checksums, relative to the hop without: {checksums:.3}"));
    Ok(())
}

impl Way {
    /// Runs `annulus-bench engine`, and returns its result.
    fn measure(self, words: &str) -> Result<Value> {
        self.started("engine", words)
    }

    /// Runs a command of `annulus-bench`, and returns its result.
    fn started(self, name: &str, words: &str) -> Result<Value> {
        let program = tool::program("release", "annulus-bench")?;
        let mut command = match self.mpi {
            None => Command::new(&program),
            Some(mpi) => {
                let words = setup::launcher(mpi, self.processes);
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).arg(&program);
                command
            }
        };
        command.arg(name).args(words.split_whitespace()).stdin(Stdio::null());
        let lines = lines(command)?;
        // Processes without a result print empty objects.
        let line = lines.into_iter().find(|line| line.get("bench").is_some());
        line.context("nothing was printed")
    }
}
