//! Tells the manifest which commit the program was built from.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A build from an archive has no commit, also where it lies inside another repository.
    if !is_own_repository() {
        return;
    }
    // Every commit and checkout writes the one or the other, wherever a worktree or a submodule has them.
    for file in ["logs/HEAD", "HEAD"] {
        if let Some(path) =
            git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists())
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        println!("cargo::rustc-env=ANNULUS_COMMIT={commit}");
    }
}

/// Whether the workspace is a repository's root.
fn is_own_repository() -> bool {
    let real = |path: PathBuf| path.canonicalize().ok();
    let root = git(&["rev-parse", "--show-toplevel"]).and_then(|root| real(root.into()));
    root.is_some() && root == real(PathBuf::from("../.."))
}

/// What git says, on one line; `None` where it fails, or is not there.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim_end().to_owned())
}
