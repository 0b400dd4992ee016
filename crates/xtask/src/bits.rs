//! `cargo xtask bits`: trains `experiments/same-bits.yaml` with different ranks, meshes, strategies, engines, `parallel.state`, workers,
//! and with a kill and a resume on other ranks. All must have the same losses and hashes; without `reproducible: strict` they must not.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::{root, setup, tool};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of steps
    #[arg(long, default_value_t = 200)]
    steps: u64,
}

/// How a run is computed.
struct Way {
    /// The launcher's folder below `target/python` and the number of processes; `None` for threads of one process.
    mpi: Option<(&'static str, usize)>,
    changes: &'static str,
    /// Whether it runs on one core, with one worker.
    one_core: bool,
    /// The changes with which it is resumed, if it is killed after a third of its steps.
    then: Option<&'static str>,
}

const THREADS: Way = Way { mpi: None, changes: "", one_core: false, then: None };
const fn over(family: &'static str, processes: usize, changes: &'static str) -> Way {
    Way { mpi: Some((family, processes)), changes, ..THREADS }
}
const fn threads(changes: &'static str) -> Way {
    Way { changes, ..THREADS }
}

const WAYS: [Way; 16] = [
    threads("mesh.sequence=1 attention.strategy=local"),
    Way { one_core: true, ..threads("mesh.sequence=1 attention.strategy=local") },
    threads("mesh.sequence=2 attention.strategy=ring attention.layout=zigzag"),
    threads("mesh.sequence=3"),
    threads("mesh.sequence=4 attention.strategy=megatron memory.recompute=layer"),
    threads("mesh.sequence=8 attention.strategy=ring attention.backward=queries"),
    threads("mesh.data=2 mesh.sequence=2 attention.strategy=ulysses"),
    threads("mesh.data=2 mesh.sequence=4 attention.strategy=double-ring memory.micro_batch=1"),
    over("mpich", 2, "mesh.sequence=2 parallel.state=replicated"),
    over("mpich", 3, "mesh.sequence=3 parallel.state=zero3 attention.strategy=all-gather"),
    over("mpich", 4, "mesh.data=2 mesh.sequence=2 parallel.state=zero3 attention.strategy=ring"),
    over("openmpi", 2, "mesh.sequence=4 parallel.state=zero3 attention.strategy=usp"),
    over("openmpi", 2, "mesh.data=2 mesh.sequence=4 parallel.state=replicated"),
    Way { one_core: true, ..over("openmpi", 2, "mesh.sequence=2 parallel.state=zero3") },
    Way { then: Some("mesh.sequence=3"), ..threads("mesh.sequence=2 attention.strategy=ring") },
    Way {
        then: Some("mesh.sequence=1 attention.strategy=local"),
        ..threads("mesh.data=2 mesh.sequence=2 attention.strategy=broadcast")
    },
];
/// Runs without strict sums, which must differ.
const CONTROL: [Way; 2] = [
    threads("reproducible=layout mesh.sequence=1 attention.strategy=local"),
    threads("reproducible=layout mesh.sequence=3"),
];

/// Prints a Markdown table; fails if the bits of the ways differ, or if those of the control do not.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::mpi()?;
    tool::cargo(&["build", "--release", "--package", "annulus-cli"])?;
    tool::print(&format!("`experiments/same-bits.yaml`, {} steps\n", arguments.steps));
    tool::print("| by | changes | seconds | hash of the state at the end | bits |");
    tool::print("| --- | --- | --- | --- | --- |");
    let mut first = None;
    let mut others = Vec::new();
    for (number, way) in WAYS.iter().enumerate() {
        let (bits, hash, took) = way.train(number, arguments.steps)?;
        let is_same = *first.get_or_insert_with(|| bits.clone()) == bits;
        way.print(took, &hash, if is_same { "the same" } else { "OTHERS" });
        others.extend((!is_same).then_some(way.changes));
    }
    let mut control = Vec::from_iter(first);
    for (number, way) in CONTROL.iter().enumerate() {
        let (bits, hash, took) = way.train(WAYS.len() + number, arguments.steps)?;
        way.print(took, &hash, if control.contains(&bits) { "THE SAME" } else { "others" });
        control.push(bits);
    }
    ensure!(others.is_empty(), "bits differ: {}", others.join("; "));
    control.sort();
    control.dedup();
    ensure!(
        control.len() == 1 + CONTROL.len(),
        "without strict sums bits are the same: nothing was shown"
    );
    Ok(())
}

impl Way {
    fn print(&self, took: Duration, hash: &str, verdict: &str) {
        let by = self
            .mpi
            .map_or(String::from("threads"), |(mpi, many)| format!("{mpi}, {many} processes"));
        let core = if self.one_core { ", on one core" } else { "" };
        let then = self.then.map(|then| format!(", killed, then {then}")).unwrap_or_default();
        let (changes, seconds) = (self.changes, took.as_secs_f64());
        tool::print(&format!(
            "| {by}{core} | {changes}{then} | {seconds:.1} | {hash} | {verdict} |"
        ));
    }

    /// Trains; returns the run's results without times, its last hash, and how long it took.
    fn train(&self, number: usize, steps: u64) -> Result<(String, String, Duration)> {
        let output = root().join(format!("target/bits/{number}"));
        tool::remove_old(&output)?;
        let begun = Instant::now();
        if let Some(then) = self.then {
            let mut killed = self.command(self.changes, &output, steps)?.spawn()?;
            while logged(&output) < steps / 3 && killed.try_wait()?.is_none() {
                sleep(Duration::from_millis(5));
            }
            ensure!(killed.try_wait()?.is_none(), "it ended before it was killed");
            killed.kill()?;
            killed.wait()?;
            finish(self.command(then, &output, steps)?)?;
        } else {
            finish(self.command(self.changes, &output, steps)?)?;
        }
        let (bits, hash) = bits(&output)?;
        Ok((bits, hash, begun.elapsed()))
    }

    fn command(&self, changes: &str, output: &Path, steps: u64) -> Result<Command> {
        let mut words: Vec<OsString> = Vec::new();
        if self.one_core {
            words.extend(["taskset", "-c", "0"].map(OsString::from));
        }
        if let Some((family, processes)) = self.mpi {
            words.extend(setup::launcher(family, processes));
            let unbound = ["--bind-to", "none"].map(OsString::from);
            words.extend(unbound.into_iter().filter(|_| family == "openmpi"));
        }
        words.push(tool::program("release", "annulus")?.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["train", "experiments/same-bits.yaml"]);
        command.args(changes.split_whitespace()).arg(format!("schedule.steps={steps}"));
        command.arg(format!("output={}", output.display())).current_dir(root());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

fn finish(mut command: Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// The last step that a run logged.
fn logged(output: &Path) -> u64 {
    let text = fs::read_to_string(output.join("metrics.jsonl")).unwrap_or_default();
    let last = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back();
    last.and_then(|line| line["step"].as_u64()).unwrap_or_default()
}

/// All hashes and logged losses of a run, and the final state's hash.
fn bits(output: &Path) -> Result<(String, String)> {
    let hashes = fs::read_to_string(output.join("hashes.jsonl")).context("no hashes")?;
    let last: Value = serde_json::from_str(hashes.lines().last().context("no hashes")?)?;
    let hash = last["state"].as_str().unwrap_or_default().chars().take(16).collect();
    let line = |line: &Value| {
        let tags = ["step", "train/loss", "train/grad_norm", "evaluate/loss"];
        tags.map(|tag| line[tag].to_string()).join(" ") + "\n"
    };
    let losses: String = tool::metrics(output)?.iter().map(line).collect();
    Ok((losses + &hashes, hash))
}
