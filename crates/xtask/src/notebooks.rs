//! Runs the notebooks from top to bottom, and checks that they succeed and print what is stored in them.

use std::env;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{root, setup, tool};

/// The Python packages that run the notebooks, and that these use for figures.
const PACKAGES: &[&str] =
    &["nbclient==0.11.0", "nbformat==5.11.1", "ipykernel==7.4.0", "matplotlib==3.11.2"];

#[derive(Args, Default)]
pub(crate) struct Arguments {
    /// Save the notebooks with their new outputs and figures
    #[arg(long)]
    keep: bool,
}

/// Builds the program that notebooks call, and runs them.
pub(crate) fn build_and_run(arguments: &Arguments) -> Result<()> {
    tool::cargo(&["build", "--package", "annulus-cli", "--quiet"])?;
    run(arguments)
}

/// Runs every notebook with the program that was built last; skips them with a message if there is no Python.
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
    // Editors keep copies in hidden folders.
    notebooks.retain(|path| path.parent() == Some(&place) && tool::ending(path) == "ipynb");
    let mut words = vec![root().join("crates/xtask/python/notebooks.py")];
    words.extend(arguments.keep.then(|| "--keep".into()));
    let program = tool::program("debug", "annulus")?;
    let others = env::var_os("PATH").unwrap_or_default();
    let folders = program.parent().map(Into::into).into_iter().chain(env::split_paths(&others));
    let path = env::join_paths(folders)?;
    tool::run_with(&[("PATH", path.as_os_str())], python, &[words, notebooks].concat())
}
