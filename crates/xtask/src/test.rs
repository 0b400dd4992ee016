//! Every test, after what they need has been set up; and what the CUDA compiler makes of the kernels.

use anyhow::Result;

use crate::{cuda, notebooks, setup, tool};

/// What the tests of kernels, and of a training step made of them, run on.
const EMULATED: &str = "annulus-ops/emulator,annulus-train/emulator";

/// Runs every test of the workspace, then the examples in its documentation and the notebooks, then compiles the kernels.
pub(crate) fn run() -> Result<()> {
    setup::tensorboard()?;
    tool::cargo(&["test", "--workspace", "--features", EMULATED, "--quiet"])?;
    notebooks::run()?;
    // The wheels are for this system alone.
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return cuda::run(&cuda::Command::Check);
    }
    tool::say("the CUDA compiler is not for this system: kernels are not compiled");
    Ok(())
}
