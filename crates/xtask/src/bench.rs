//! `cargo xtask bench …`: builds the measuring program optimised, and becomes it.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::{engines, tool};

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Arguments of `annulus-bench`; `--help` lists them; `engines`: attention and messages over threads and over processes
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Hands everything on: arguments, standard input and output, the exit code.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.words.first().is_some_and(|word| word == "engines") {
        return engines::run(&arguments.words);
    }
    tool::build_measuring()?;
    let program = tool::program("release", "annulus-bench")?;
    let mut command = Command::new(&program);
    command.args(&arguments.words);
    become_it(command).with_context(|| format!("cannot start `{}`", program.display()))
}

/// In this very process, so that whoever pairs programs sees one.
#[cfg(unix)]
fn become_it(mut command: Command) -> std::io::Result<ExitCode> {
    Err(std::os::unix::process::CommandExt::exec(&mut command))
}

#[cfg(not(unix))]
fn become_it(mut command: Command) -> std::io::Result<ExitCode> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
