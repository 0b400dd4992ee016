//! Runs other programs, and prints messages.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Prints a message to standard error.
#[expect(clippy::print_stderr, reason = "the one place that talks")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// Prints a line of data to standard output.
#[expect(clippy::print_stdout, reason = "the one place that answers")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}

/// Removes what an earlier run left in `folder`.
pub(crate) fn remove_old(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

/// Runs `program` in the repository's root; if it fails, the error has its name.
pub(crate) fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Result<()> {
    run_with(&[], program, arguments)
}

/// Runs `program` with these environment variables added.
pub(crate) fn run_with<S: AsRef<OsStr>>(
    variables: &[(&str, &OsStr)],
    program: impl AsRef<OsStr>,
    arguments: &[S],
) -> Result<()> {
    let program = program.as_ref();
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let shown = format!("{} {}", program.to_string_lossy(), words.join(" "));
    say(&format!("> {shown}"));
    let status = Command::new(program)
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(crate::root())
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed with {status}");
    }
    Ok(())
}

/// Runs the cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(&[], arguments)
}

/// Runs cargo with these environment variables added.
pub(crate) fn cargo_with(variables: &[(&str, &OsStr)], arguments: &[&str]) -> Result<()> {
    run_with(variables, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
}

/// Builds the benchmarks and `annulus`, optimised, by one command. Built alone, each selects other features of their common dependencies,
/// and would rebuild those of the other.
pub(crate) fn build_measuring() -> Result<()> {
    let packages = ["--package", "annulus-bench", "--package", "annulus-cli"];
    cargo(&[&["build", "--release", "--quiet"], &packages[..]].concat())
}

/// All files below a folder, or the file itself, sorted.
pub(crate) fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
        found.extend(files(&entry?.path())?);
    }
    found.sort();
    Ok(found)
}

/// A file's extension.
pub(crate) fn ending(path: &Path) -> &str {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

/// Trains `file` with `changes` in `output`, with the program of a profile.
pub(crate) fn train(profile: &str, file: &str, changes: &[String], output: &Path) -> Result<()> {
    let mut words = vec!["train".to_owned(), file.to_owned()];
    words.extend_from_slice(changes);
    words.push(format!("output={}", output.display()));
    run(program(profile, "annulus")?, &words)
}

/// The metrics of a run, step by step.
pub(crate) fn metrics(output: &Path) -> Result<Vec<Value>> {
    let path = output.join("metrics.jsonl");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(!lines.is_empty(), "{} is empty", path.display());
    Ok(lines)
}

/// The path of a program that cargo has built in a profile's folder, wherever the target directory is.
pub(crate) fn program(folder: &str, name: &str) -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    Ok(metadata.target_directory.join(folder).join(name).into())
}

/// Runs a cargo command; returns the program that it builds last.
pub(crate) fn built_by(command: Command) -> Result<PathBuf> {
    let mut programs = all_built_by(command)?;
    programs.pop().context("cargo named no program")
}

/// Runs a cargo command; returns the programs that it builds, in order.
pub(crate) fn all_built_by(command: Command) -> Result<Vec<PathBuf>> {
    let messages = messages(command)?;
    let programs = messages.iter().filter_map(|message| message["executable"].as_str());
    Ok(programs.map(PathBuf::from).collect())
}

/// Runs a cargo command with messages as JSON; returns them.
pub(crate) fn messages(mut command: Command) -> Result<Vec<Value>> {
    command.args(["--message-format", "json"]).current_dir(crate::root()).stdout(Stdio::piped());
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let shown = format!("cargo {}", words.join(" "));
    say(&format!("> {shown}"));
    let output =
        command.spawn().with_context(|| format!("cannot start `{shown}`"))?.wait_with_output()?;
    if !output.status.success() {
        bail!("`{shown}` failed with {}", output.status);
    }
    let lines = String::from_utf8(output.stdout)?;
    Ok(lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// A command of the cargo that runs this program, without arguments yet.
pub(crate) fn cargo_command() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
