//! Python environments below `target/python`: TensorBoard's own reader, pyarrow, and two generations of transformers with PEFT.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{root, tool};

/// What the tests of event files read with.
const TENSORBOARD: &[&str] = &["tensorboard==2.21.0"];

/// What the tests of tables read was written with.
const TABLES: &[&str] = &["pyarrow==26.0.1"];

/// TensorBoard's reader alone: small, and wanted by the tests.
pub(crate) fn tensorboard() -> Result<()> {
    environment("tensorboard", &[TENSORBOARD]).map(drop)
}

/// What writes tables. Gives its Python.
pub(crate) fn tables() -> Result<PathBuf> {
    environment("tables", &[TABLES])
}

/// All environments.
pub(crate) fn python() -> Result<()> {
    tensorboard()?;
    tables()?;
    for (name, transformers) in
        [("transformers-5", "transformers>=5,<6"), ("transformers-4", "transformers>=4,<5")]
    {
        let python = environment(
            name,
            &[
                &[
                    "numpy",
                    "sympy",
                    "networkx",
                    "jinja2",
                    "fsspec",
                    "filelock",
                    "typing_extensions",
                    "setuptools",
                ],
                &["nvidia-cuda-runtime==13.0.96", "safetensors", transformers],
                // The registry's wheel asks for gigabytes of CUDA packages that a CPU never calls.
                &["--no-deps", "torch==2.13.0"],
                // What it asks for besides is there.
                &["--no-deps", "peft==0.21.2", "accelerate", "psutil"],
            ],
        )?;
        let script = root().join("crates/xtask/python/stub_cuda.py");
        tool::run(&python, &[script.as_os_str()])?;
        tool::run(
            &python,
            &[
                "-c",
                "import torch, transformers, peft; \
                 print(torch.__version__, transformers.__version__, peft.__version__)",
            ],
        )?;
    }
    Ok(())
}

/// A virtual environment with the packages of each list installed in one call; made once.
fn environment(name: &str, packages: &[&[&str]]) -> Result<PathBuf> {
    environment_at(&root().join("target/python").join(name), packages)
}

/// The same in `folder`. Gives its Python.
pub(crate) fn environment_at(folder: &Path, packages: &[&[&str]]) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let finished = folder.join("finished");
    if finished.exists() {
        return Ok(python);
    }
    let folder = folder.to_string_lossy();
    tool::run("python3", &["-m", "venv", "--clear", &folder])?;
    for list in packages {
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        tool::run(&python, &[&install[..], list].concat())?;
    }
    std::fs::write(finished, "")?;
    Ok(python)
}
