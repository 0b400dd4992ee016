//! The program with CUDA.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::toolkit::{TARGET, Toolkit};
use crate::{root, tool};

/// Builds `annulus` optimised.
pub(crate) fn run(toolkit: &Toolkit) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--release", "--package", "annulus-cli", "--features", "cuda"])
        .current_dir(root());
    toolkit.around(&mut command);
    tool::say("> cargo build --release --package annulus-cli --features cuda");
    if !command.status()?.success() {
        bail!("the build with CUDA failed");
    }
    Ok(root().join("target/cuda/build").join(TARGET).join("release/annulus"))
}
