//! `cargo xtask wheel`: builds the wheel with the program and the Python reader of run folders, installs it into an empty environment,
//! and tries it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{root, setup, test, tool};

/// The package that builds wheels.
pub(crate) const MATURIN: &str = "maturin==1.16.0";

/// The environment variable that makes this program stand in for cargo; its value is the real cargo.
pub(crate) const STANDS_FOR: &str = "ANNULUS_STANDS_FOR_CARGO";

/// The kind and the name of the target that the wheel contains.
const PROGRAM: (&str, &str) = ("bin", "annulus");

/// Tests the reader, then builds a wheel with the program that the tests use, installs it and trains a few steps.
pub(crate) fn run() -> Result<()> {
    let able = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    if !able.is_ok_and(|output| output.status.success()) {
        tool::say("SKIPPED: no `python3` with `venv`: the wheel is not built");
        return Ok(());
    }
    // `-B`: no compiled Python among the sources.
    tool::run(
        "python3",
        &["-B", "-m", "unittest", "discover", "-q", "-s", "crates/cli/python/tests"],
    )?;
    let place = root().join("target/python");
    setup::environment_at(&place.join("maturin"), &[&[MATURIN]])?;
    let own = std::env::current_exe()?;
    let cargo = tool::cargo_command();
    let variables = [("CARGO", own.as_os_str()), (STANDS_FOR, cargo.get_program())];
    let program = place.join("maturin/bin/maturin");
    let quick = ["--profile", "dev", "--auditwheel", "skip", "--compression-level", "1"];
    let wheel = built(&program, &variables, &root().join("target/wheel"), &quick)?;
    tried(&wheel)
}

/// Builds a wheel by maturin in `folder`, after removing earlier ones.
pub(crate) fn built(
    maturin: &Path,
    variables: &[(&str, &OsStr)],
    folder: &Path,
    options: &[&str],
) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    for old in wheels(folder)? {
        fs::remove_file(old)?;
    }
    let out = folder.to_string_lossy();
    let words = ["build", "--manifest-path", "crates/cli/Cargo.toml", "--out", &out];
    tool::run_with(variables, maturin, &[&words[..], options].concat())?;
    let mut made = wheels(folder)?;
    ensure!(made.len() == 1, "maturin made {} wheels in {}", made.len(), folder.display());
    Ok(made.remove(0))
}

fn wheels(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = tool::files(folder)?;
    files.retain(|path| tool::ending(path) == "whl");
    Ok(files)
}

/// Installs a wheel into an empty environment, and trains the first steps of the quickstart in an empty folder.
pub(crate) fn tried(wheel: &Path) -> Result<()> {
    let folder = root().join("target/python/wheel");
    tool::run(
        "python3",
        &["-m".as_ref(), "venv".as_ref(), "--clear".as_ref(), folder.as_os_str()],
    )?;
    let python = folder.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"];
    let mut words: Vec<&OsStr> = install.iter().map(OsStr::new).collect();
    words.push(wheel.as_os_str());
    tool::run(&python, &words)?;
    tool::run(&python, &[root().join("crates/xtask/python/installed.py")])
}

/// Stands in for cargo when maturin calls it. To compile the program, it returns the one that was built for the tests: for the program
/// alone cargo would compile all dependencies again with fewer features.
pub(crate) fn stand_in(cargo: &OsStr) -> Result<ExitCode> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let mut command = Command::new(cargo);
    command.env("CARGO", cargo).env_remove(STANDS_FOR);
    if words.first().is_none_or(|word| word != "rustc") {
        let status = command.args(words).status()?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    command.args(test::BUILT).args(["--message-format", "json-render-diagnostics"]);
    let output = command.current_dir(root()).stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let lines = String::from_utf8(output.stdout)?;
    let artifact = lines.lines().rfind(|line| is_program(line));
    tool::print(artifact.context("the tests built no program `annulus`")?);
    Ok(ExitCode::SUCCESS)
}

/// Whether a message of cargo is about the program, and not about its tests.
fn is_program(line: &str) -> bool {
    let Ok(message) = serde_json::from_str::<Value>(line) else { return false };
    let (target, kind) = (&message["target"], &message["target"]["kind"][0]);
    (kind.as_str(), target["name"].as_str()) == (Some(PROGRAM.0), Some(PROGRAM.1))
        && message["profile"]["test"] == false
        && message["executable"].is_string()
}
