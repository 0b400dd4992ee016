//! Running other programs, and saying so.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// One line of talk.
#[expect(clippy::print_stderr, reason = "the one place that talks")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// Runs `program` in the repository's root and fails with its name if it does.
pub(crate) fn run<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Result<()> {
    run_with(&[], program, arguments)
}

/// Runs `program` with more in its environment.
fn run_with<S: AsRef<OsStr>>(
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

/// Runs cargo, the one that runs this.
pub(crate) fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(&[], arguments)
}

/// Runs cargo with more in its environment.
pub(crate) fn cargo_with(variables: &[(&str, &OsStr)], arguments: &[&str]) -> Result<()> {
    run_with(variables, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
}

/// A program as cargo has built it in a profile's folder, wherever that is.
pub(crate) fn program(folder: &str, name: &str) -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    Ok(metadata.target_directory.join(folder).join(name).into())
}

/// The program that a cargo command builds last; the command is told to print messages as JSON.
pub(crate) fn built_by(mut command: Command) -> Result<PathBuf> {
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
    let messages = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut executables = messages
        .filter_map(|message: serde_json::Value| message["executable"].as_str().map(PathBuf::from));
    executables.next_back().with_context(|| format!("`{shown}` named no program"))
}

/// Cargo, the one that runs this, to be given words.
pub(crate) fn cargo_command() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
