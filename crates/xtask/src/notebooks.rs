//! The notebooks, run from top to bottom: what they read is there, what they assert holds, and what they print is what is kept.

use std::env;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{root, setup, tool};

/// Packages that run the notebooks, and that they draw with.
const PACKAGES: &[&str] =
    &["nbclient==0.11.0", "nbformat==5.11.1", "ipykernel==7.4.0", "matplotlib==3.11.2"];

#[derive(Args, Default)]
pub(crate) struct Arguments {
    /// Write them back with the figures that they drew
    #[arg(long)]
    keep: bool,
}

/// Builds the program that notebooks ask, and runs them.
pub(crate) fn build_and_run(arguments: &Arguments) -> Result<()> {
    tool::cargo(&["build", "--package", "annulus-cli", "--quiet"])?;
    run(arguments)
}

/// Runs every notebook with the program that was built last; says so where there is no Python to run it with.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        tool::say("SKIPPED: no `python3`: the notebooks are not run");
        return Ok(());
    }
    let folder = root().join("target/python/notebooks");
    let python = setup::environment_at(&folder, &[PACKAGES])?;
    let place = root().join("notebooks");
    let mut notebooks = tool::files(&place)?;
    // Editors keep copies in folders of their own.
    notebooks.retain(|path| path.parent() == Some(&place) && tool::ending(path) == "ipynb");
    let mut words = vec![root().join("crates/xtask/python/notebooks.py")];
    words.extend(arguments.keep.then(|| "--keep".into()));
    let program = tool::program("debug", "annulus")?;
    let others = env::var_os("PATH").unwrap_or_default();
    let folders = program.parent().map(Into::into).into_iter().chain(env::split_paths(&others));
    let path = env::join_paths(folders)?;
    tool::run_with(&[("PATH", path.as_os_str())], python, &[words, notebooks].concat())
}
