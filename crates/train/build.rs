//! Tells the manifest which commit the program was built from.

use std::path::Path;
use std::process::Command;

fn main() {
    // Every commit and checkout writes it; a build from an archive has none.
    let log = Path::new("../../.git/logs/HEAD");
    println!("cargo::rerun-if-changed=build.rs");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).output();
    if let Some(commit) = commit.ok().filter(|commit| commit.status.success()) {
        println!("cargo::rustc-env=ANNULUS_COMMIT={}", String::from_utf8_lossy(&commit.stdout));
    }
}
