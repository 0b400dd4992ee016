//! Every test, after what they need has been set up; and what the CUDA compiler makes of the kernels.

use anyhow::Result;

use crate::steps::Step;
use crate::{cuda, notebooks, setup, suite, tool, wheel};

/// The one set of features that tests are built with: kernels, and a training step made of them, run on the CPU.
const FEATURES: &str = "annulus-ops/emulator,annulus-attention/emulator,annulus-train/emulator";

/// What builds all tests, and the program that they are run with.
pub(crate) const BUILT: &[&str] = &[
    "test",
    "--workspace",
    "--features",
    FEATURES,
    "--quiet",
    "--no-run",
    "--lib",
    "--bins",
    "--tests",
];

/// Every test of the workspace, then the examples in its documentation, the notebooks and the wheel, then the kernels compiled.
pub(crate) const STEPS: &[Step] = &[
    ("what tests need of Python", setup::tensorboard),
    ("MPICH and Open MPI", setup::mpi),
    ("tests, built", || tool::cargo(BUILT)),
    ("tests", run_tests),
    ("examples in the documentation", run_examples),
    ("notebooks", || notebooks::run(&notebooks::Arguments::default())),
    ("wheel", wheel::run),
    ("CUDA kernels, compiled", compile_kernels),
];

fn run_tests() -> Result<()> {
    let mut command = tool::cargo_command();
    command.args(BUILT);
    suite::run(command)
}

fn run_examples() -> Result<()> {
    let test =
        ["test", "--workspace", "--features", FEATURES, "--quiet", "--no-fail-fast", "--doc"];
    tool::cargo(&test)
}

fn compile_kernels() -> Result<()> {
    // The wheels are for this system alone.
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return cuda::run(&cuda::Command::Check { all: false });
    }
    tool::say("the CUDA compiler is not for this system: kernels are not compiled");
    Ok(())
}
