//! `cargo xtask test`: sets up what tests need, runs all of them, and checks the compiled CUDA kernels.

use anyhow::Result;

use crate::steps::Step;
use crate::{cuda, notebooks, setup, suite, tool, wheel};

/// The features that all tests are built with: they run the kernels, and training steps with them, on the CPU.
const FEATURES: &str = "annulus-ops/emulator,annulus-attention/emulator,annulus-train/emulator";

/// Arguments of cargo that build all tests, and the program that they run.
pub(crate) const BUILT: &[&str] = &[
    "test",
    "--workspace",
    "--features",
    FEATURES,
    "--quiet",
    "--no-run",
    // Of what has tests, as manifests say, libraries and programs included.
    "--tests",
];

/// The steps: the tests of the workspace, examples in the documentation, notebooks, the wheel, and the compiled kernels.
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
    // The CUDA toolkit's wheels are for this system only.
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return cuda::run(&cuda::Command::Check { all: false });
    }
    tool::say("the CUDA compiler is not for this system: kernels are not compiled");
    Ok(())
}
