//! One folder that runs on a machine with a GPU and neither Rust nor nvcc: the tests of the kernels, their speed
//! beside PyTorch's, and training steps beside transformers'.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::toolkit::Toolkit;
use crate::{root, tool};

/// The files of the folder besides programs.
const FILES: [(&str, &str); 5] = [
    ("run.sh", include_str!("../../gpu/run.sh")),
    ("sdpa.py", include_str!("../../gpu/sdpa.py")),
    ("rule.py", include_str!("../../gpu/rule.py")),
    ("llama.py", include_str!("../../gpu/llama.py")),
    ("tables.py", include_str!("../../gpu/tables.py")),
];

/// Builds the programs and fills `target/cuda/pack`.
pub(crate) fn run(toolkit: &Toolkit) -> Result<PathBuf> {
    let folder = root().join("target/cuda/pack");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let tests = ["test", "--no-run", "--package", "annulus-ops", "--test", "kernels"];
    put(&built(toolkit, &tests)?, &folder.join("kernels"))?;
    let bench = ["build", "--package", "annulus-bench", "--bin", "annulus-bench"];
    put(&built(toolkit, &bench)?, &folder.join("annulus-bench"))?;
    put(&program(toolkit)?, &folder.join("annulus"))?;
    for (name, text) in FILES {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(folder)
}

/// `annulus`, optimised, with CUDA.
pub(crate) fn program(toolkit: &Toolkit) -> Result<PathBuf> {
    built(toolkit, &["build", "--package", "annulus-cli", "--bin", "annulus"])
}

/// The program that cargo builds, optimised, with CUDA.
fn built(toolkit: &Toolkit, words: &[&str]) -> Result<PathBuf> {
    let mut command = tool::cargo_command();
    command.args(words).args(["--release", "--features", "cuda"]);
    toolkit.around(&mut command);
    tool::built_by(command)
}

/// Without symbols, compressed by what the other machine can undo: Python.
fn put(program: &Path, into: &Path) -> Result<()> {
    let words: [&OsStr; 3] = ["-o".as_ref(), into.as_os_str(), program.as_os_str()];
    tool::run("strip", &words)?;
    let code = "import lzma, os, sys; p = sys.argv[1]; \
                open(p + '.xz', 'wb').write(lzma.compress(open(p, 'rb').read())); os.remove(p)";
    tool::run("python3", &["-c".as_ref(), code.as_ref(), into.as_os_str()])
}
