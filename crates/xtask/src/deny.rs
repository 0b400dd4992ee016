//! Checks licences, sources and banned crates with cargo-deny; tells advisories, too, if their database can be fetched.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{root, tool};

const VERSION: &str = "0.20.2";

/// Installs cargo-deny below `target/` if it is not there in this version, and runs it.
pub(crate) fn run() -> Result<()> {
    let program = installed()?;
    let config = ["--config", ".deny.toml", "check", "--hide-inclusion-graph"];
    tool::run(&program, &[&config[..], &["bans", "licenses", "sources"]].concat())?;
    if tool::run(&program, &[&["--config", ".deny.toml", "fetch", "db"][..]].concat()).is_err() {
        tool::say("advisories: SKIPPED, the database of advisories cannot be fetched from here");
        return Ok(());
    }
    // They come without a change here: a commit that passed must pass again.
    if tool::run(&program, &[&config[..], &["advisories"]].concat()).is_err() {
        tool::say("advisories: FOUND, as listed above; update the crates that they name");
    }
    Ok(())
}

fn installed() -> Result<PathBuf> {
    let tools = root().join("target/tools");
    let program = tools.join("bin/cargo-deny");
    if !is_pinned(&program) {
        tool::say("installing cargo-deny below target/tools (once a version, some minutes)");
        let tools = tools.to_string_lossy();
        // A debug build takes half the time, and is fast enough for a few hundred manifests; nobody debugs it.
        let flags = ["--locked", "--no-default-features", "--debug", "--quiet"];
        let install = ["install", "cargo-deny", "--version", VERSION, "--root", &tools];
        let variables = [("CARGO_PROFILE_DEV_DEBUG", "0".as_ref())];
        tool::cargo_with(&variables, &[&install[..], &flags].concat())?;
    }
    Ok(program)
}

/// Whether the program is there and says that it is of the pinned version.
fn is_pinned(program: &Path) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|said| is_version(&String::from_utf8_lossy(&said.stdout)))
}

/// As in `cargo-deny 0.20.2`.
fn is_version(said: &str) -> bool {
    said.split_whitespace().nth(1) == Some(VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_installed_anew() {
        assert!(is_version(&format!("cargo-deny {VERSION}\n")));
        assert!(!is_version("cargo-deny 0.1.0\n") && !is_version(""));
        assert!(!is_pinned(Path::new("no/such/program")));
    }
}
