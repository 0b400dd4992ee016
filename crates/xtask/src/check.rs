//! `cargo xtask check`: checks without running tests, the cheapest first.

use anyhow::Result;

use crate::steps::Step;
use crate::{arrows, cuda, deny, sizes, tool, untested, words};

/// Format, sizes, dependencies between crates, words, tests that are not run, lints, documentation.
pub(crate) const STEPS: &[Step] = &[
    ("format", || tool::cargo(&["fmt", "--all", "--check"])),
    ("sizes of files and functions", sizes::run),
    ("dependency arrows", arrows::run),
    ("words of the glossary", words::run),
    ("tests that are not run", untested::run),
    ("lints", lints),
    ("documentation", documentation),
];

/// Licences, sources and banned crates. After the tests, because the tool for it is built from source.
pub(crate) const DEPENDENCIES: Step = ("licences and sources of dependencies", deny::run);

/// Lints everything at once, including code for CUDA. No CUDA toolkit is needed: a stub stands in for its compiler, whose output is not
/// used.
fn lints() -> Result<()> {
    let compiler = cuda::stub_compiler()?;
    let variables = [
        ("NVCC", compiler.as_os_str()),
        ("CUDARC_CUDA_VERSION", "13000".as_ref()),
        ("CUDA_COMPUTE_CAP", "80".as_ref()),
    ];
    let features = "annulus-cli/cuda,annulus-bench/cuda,annulus-ops/emulator,annulus-attention/emulator,\
                    annulus-train/emulator";
    let what = ["clippy", "--workspace", "--all-targets", "--features", features, "--quiet"];
    tool::cargo_with(&variables, &[&what[..], &["--", "--deny", "warnings"]].concat())
}

/// Builds the documentation of our crates; broken links are errors.
fn documentation() -> Result<()> {
    let variables = [("RUSTDOCFLAGS", "--deny warnings".as_ref())];
    tool::cargo_with(&variables, &["doc", "--workspace", "--no-deps", "--quiet"])
}
