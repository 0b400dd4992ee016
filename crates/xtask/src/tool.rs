//! Running other programs, and saying so.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

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

/// The same with more in its environment.
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

/// The same with more in its environment.
pub(crate) fn cargo_with(variables: &[(&str, &OsStr)], arguments: &[&str]) -> Result<()> {
    run_with(variables, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
}

/// A program as cargo has built it in a profile's folder, wherever that is.
pub(crate) fn program(folder: &str, name: &str) -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    Ok(metadata.target_directory.join(folder).join(name).into())
}
