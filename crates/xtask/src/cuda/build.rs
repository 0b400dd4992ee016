//! The program with CUDA.

use std::path::PathBuf;

use anyhow::Result;

use super::toolkit::Toolkit;
use crate::tool;

/// Builds `annulus` optimised.
pub(crate) fn run(toolkit: &Toolkit) -> Result<PathBuf> {
    let mut command = tool::cargo_command();
    command.args(["build", "--release", "--package", "annulus-cli", "--features", "cuda"]);
    toolkit.around(&mut command);
    tool::built_by(command)
}
