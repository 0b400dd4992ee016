//! Checks licences, sources and banned crates with cargo-deny; advisories too if their database can be fetched.

use std::path::PathBuf;

use anyhow::Result;

use crate::{root, tool};

const VERSION: &str = "0.20.2";

/// Installs cargo-deny below `target/` if it is not there, and runs it.
pub(crate) fn run() -> Result<()> {
    let program = installed()?;
    let config = ["--config", ".deny.toml", "check", "--hide-inclusion-graph"];
    tool::run(&program, &[&config[..], &["bans", "licenses", "sources"]].concat())?;
    if tool::run(&program, &[&["--config", ".deny.toml", "fetch", "db"][..]].concat()).is_err() {
        tool::say("advisories: SKIPPED, the database of advisories cannot be fetched from here");
        return Ok(());
    }
    tool::run(&program, &[&config[..], &["advisories"]].concat())
}

fn installed() -> Result<PathBuf> {
    let tools = root().join("target/tools");
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        tool::say("installing cargo-deny below target/tools (once, some minutes)");
        let tools = tools.to_string_lossy();
        // A debug build takes half the time, and is fast enough for a few hundred manifests.
        let flags = ["--locked", "--no-default-features", "--debug", "--quiet"];
        let install = ["install", "cargo-deny", "--version", VERSION, "--root", &tools];
        tool::cargo(&[&install[..], &flags].concat())?;
    }
    Ok(program)
}
