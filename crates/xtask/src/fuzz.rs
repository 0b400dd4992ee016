//! `cargo xtask attack --fuzz`: runs readers under libFuzzer. Our own crates are compiled with coverage, other libraries are shared with
//! the tests.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{root, tool};

/// The environment variable by which `main` knows that cargo runs it as the compiler.
pub(crate) const COMPILES: &str = "ANNULUS_COMPILES_WITH_COVERAGE";

/// The compiler's flags of instrumentation for libFuzzer.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// The most seconds that an input may take.
const SECONDS: &str = "-timeout=20";
/// The most megabytes of the whole process with its corpus; the memory of single inputs is counted inside it.
const MEMORY: &str = "-rss_limit_mb=2048";
/// The most bytes of an input.
const LONGEST: &str = "-max_len=12288";

/// Runs the compiler that cargo asks for, with coverage for crates that are linked into the fuzzer.
pub(crate) fn compile() -> Result<ExitCode> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let compiler = words.first().context("cargo names no compiler")?;
    let is_script = words.iter().any(|word| word.to_string_lossy().starts_with("build_script"));
    let mut command = Command::new(compiler);
    command.args(&words[1..]).env_remove(COMPILES);
    if !is_script && words.iter().any(|word| word == "--crate-name") {
        command.args(COVERAGE);
    }
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results of fuzzing a reader.
#[derive(Default)]
struct Row {
    inputs: u64,
    coverage: String,
    corpus: String,
    microseconds: u64,
    bytes: u64,
    seconds: f64,
    failure: Option<String>,
}

/// Fuzzes the readers with `runs` inputs each, and prints the table.
pub(crate) fn run(names: &[String], runs: u64, seed: u64, out: Option<&Path>) -> Result<()> {
    let fuzzer = build()?;
    let readers = readers(names)?;
    let mut table = String::from(
        "| reader | inputs | coverage | corpus | inputs/s | worst time | worst memory | failures |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let mut failed = Vec::new();
    for name in &readers {
        let row = fuzz(&fuzzer, name, runs, seed)?;
        let Row { inputs, coverage, corpus, microseconds, bytes, seconds, failure } = row;
        let (rate, megabytes) = (inputs as f64 / seconds, bytes as f64 / f64::from(1 << 20));
        let milliseconds = microseconds as f64 / 1e3;
        let count = u64::from(failure.is_some());
        let line = format!(
            "| {name} | {inputs} | {coverage} | {corpus} | {rate:.0} | {milliseconds:.1} ms | {megabytes:.1} MB | {count} |"
        );
        tool::say(&line);
        writeln!(table, "{line}")?;
        failed.extend(failure.map(|failure| format!("{name}: {failure}")));
    }
    tool::say(&format!("\n{table}"));
    if let Some(out) = out {
        std::fs::write(out, format!("{table}{}\n", failed.join("\n")))?;
    }
    if !failed.is_empty() {
        bail!("readers failed\n  {}", failed.join("\n  "));
    }
    Ok(())
}

fn build() -> Result<PathBuf> {
    let mut cargo = tool::cargo_command();
    let package = ["--package", "annulus-tests", "--features", "fuzz", "--bin", "annulus-fuzz"];
    cargo.arg("build").args(package);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", std::env::current_exe()?).env(COMPILES, "1");
    tool::built_by(cargo)
}

/// The named readers, or all; the fuzzer itself lists their names.
fn readers(names: &[String]) -> Result<Vec<String>> {
    let source = std::fs::read_to_string(root().join("tests/support/fuzz/readers.rs"))?;
    let quoted =
        source.lines().filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","));
    let all: Vec<_> = quoted.map(str::to_owned).collect();
    if let Some(name) = names.iter().find(|name| !all.contains(name)) {
        bail!("`{name}` is not a reader: {}", all.join(", "));
    }
    Ok(if names.is_empty() { all } else { names.to_owned() })
}

/// Fuzzes a reader until it has had all its inputs; starts again if it ends early, as it does when libraries retain too much memory.
fn fuzz(fuzzer: &Path, name: &str, runs: u64, seed: u64) -> Result<Row> {
    let folder = root().join("target/fuzz");
    let (corpus, failed) = (folder.join("corpus").join(name), folder.join("failed"));
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&failed)?;
    let (mut row, mut again, began) = (Row::default(), 0, Instant::now());
    while row.inputs < runs && row.failure.is_none() {
        let mut command = Command::new(fuzzer);
        command.arg(&corpus).args([SECONDS, MEMORY, LONGEST, "-print_final_stats=0"]);
        command.arg(format!("-runs={}", runs - row.inputs)).arg(format!("-seed={}", seed + again));
        command.arg(format!("-artifact_prefix={}/{name}-", failed.display()));
        command.env("ANNULUS_FUZZ", name).env("ANNULUS_FUZZ_CORPUS", &corpus);
        let output = command.stdout(Stdio::null()).output().context("the fuzzer")?;
        let before = row.inputs;
        row.read(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            row.failure = Some(told(&text));
        } else if row.inputs == before {
            bail!("{name}: the fuzzer ended without an input");
        }
        again += 1;
    }
    row.seconds = began.elapsed().as_secs_f64();
    Ok(row)
}

impl Row {
    /// Adds the results in the fuzzer's output.
    fn read(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(numbers) = line.strip_prefix("MEASURED ") {
                let numbers: Vec<u64> = numbers.split(' ').filter_map(|n| n.parse().ok()).collect();
                if let [inputs, microseconds, bytes] = numbers[..] {
                    self.inputs += inputs;
                    self.microseconds = self.microseconds.max(microseconds);
                    self.bytes = self.bytes.max(bytes);
                }
            }
            let word = |key: &str| line.split(key).nth(1)?.split_whitespace().next();
            if let (Some(coverage), Some(corpus)) = (word(" cov: "), word(" corp: ")) {
                (self.coverage, self.corpus) = (coverage.to_owned(), corpus.to_owned());
            }
        }
    }
}

/// The lines of the output that say what failed, and where the input is.
fn told(text: &str) -> String {
    let telling =
        ["panicked at", "an input took", "ERROR: libFuzzer", "Test unit written", "overflowed"];
    let lines: Vec<_> = text.lines().collect();
    let mut told = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if telling.iter().any(|word| line.contains(word)) {
            told.push((*line).to_owned());
            let next = lines.get(index + 1).filter(|_| line.contains("panicked at"));
            told.extend(next.map(|line| line.chars().take(300).collect()));
        }
    }
    told.join("; ")
}
