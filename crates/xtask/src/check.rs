//! What must hold before any test runs; the cheapest first.

use anyhow::Result;

use crate::{arrows, cuda, deny, sizes, tool};

/// Format, sizes, arrows, lints, documentation, dependencies.
pub(crate) fn run() -> Result<()> {
    tool::cargo(&["fmt", "--all", "--check"])?;
    sizes::run()?;
    arrows::run()?;
    tool::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ])?;
    with_cuda()?;
    deny::run()
}

/// Lints what is only there with CUDA, without a CUDA toolkit: its compiler is asked for, but not what it makes.
fn with_cuda() -> Result<()> {
    let compiler = cuda::mute_compiler()?;
    let variables = [
        ("NVCC", compiler.as_os_str()),
        ("CUDARC_CUDA_VERSION", "13000".as_ref()),
        ("CUDA_COMPUTE_CAP", "80".as_ref()),
    ];
    let features =
        "annulus-cli/cuda,annulus-bench/cuda,annulus-ops/emulator,annulus-train/emulator";
    tool::cargo_with(
        &variables,
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            features,
            "--quiet",
            "--",
            "--deny",
            "warnings",
        ],
    )
}
