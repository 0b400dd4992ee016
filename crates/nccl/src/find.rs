//! Finds the library of NCCL: one that is named, the system's, or that of a Python environment.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Clique, Error, Id, Library, Result};

/// The environment variable that names a library.
pub const NAMED: &str = "ANNULUS_NCCL";

/// File names of the library. The second exists where NCCL was installed for building programs.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Where NVIDIA's Python wheel has the library, below `site-packages`.
const WHEEL: &str = "nvidia/nccl/lib";

/// A library of NCCL that was loaded and is new enough.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// The library itself.
    pub library: Arc<Library>,
}

impl Found {
    /// Loads the library at `path`, or of that name where the system looks.
    ///
    /// # Errors
    /// A library that cannot be loaded, is not NCCL or is older than 2.18.
    pub fn at(path: PathBuf) -> Result<Found> {
        let library = Arc::new(Library::load(&path)?);
        Ok(Found { path, library })
    }

    /// Begins a communicator of one process, to find out why none begins: the error; `None`: it began, and was aborted.
    pub fn refusal(&self, id: &Id) -> Option<Error> {
        Clique::of_one(&self.library, id).err()
    }
}

/// Loads the library that [`NAMED`] names, or the first that the system, or a Python environment, has.
///
/// # Errors
/// When there is none that can be loaded, with what was tried.
pub fn find() -> Result<Found> {
    if let Some(path) = env::var_os(NAMED).map(PathBuf::from) {
        return Found::at(path);
    }
    let mut tried = Vec::new();
    for path in folders().iter().flat_map(|folder| NAMES.map(|name| folder.join(name))) {
        if path.is_absolute() && !path.exists() {
            continue;
        }
        match Found::at(path) {
            Ok(found) => return Ok(found),
            Err(error) => tried.push(error.to_string()),
        }
    }
    let why = format!(
        "name one with {NAMED}=/path/to/libnccl.so.2, or install it (`pip install nvidia-nccl-cu13`) ({})",
        tried.join("; ")
    );
    Err(Error::new("no library of NCCL was found", why))
}

/// Folders to look in: the empty one, which stands for where the system looks, and those of Python environments: the active ones, and
/// that of the `python3` in `PATH`.
fn folders() -> Vec<PathBuf> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os);
    let paths = env::var_os("PATH").unwrap_or_default();
    let python = env::split_paths(&paths).map(|folder| folder.join("python3"));
    let python = python.filter_map(|path| path.parent()?.parent().map(Path::to_owned));
    let mut roots: Vec<PathBuf> = named.map(PathBuf::from).chain(python).collect();
    roots.dedup();
    let packages = roots.iter().flat_map(|root| packages(root));
    [PathBuf::new()].into_iter().chain(packages.map(|packages| packages.join(WHEEL))).collect()
}

/// The `site-packages` folders of an environment, of any version of Python.
fn packages(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["lib", "local/lib", "lib64"] {
        let versions = std::fs::read_dir(root.join(lib)).into_iter().flatten().flatten();
        let versions = versions.map(|entry| entry.path());
        let is_python = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        };
        for version in versions.filter(is_python) {
            found.extend(["site-packages", "dist-packages"].map(|name| version.join(name)));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_is_found_below_whichever_python() {
        let root = tempfile::tempdir().unwrap();
        for version in ["python3.11", "python3.13", "pkgconfig"] {
            std::fs::create_dir_all(root.path().join("lib").join(version)).unwrap();
        }
        let found = packages(root.path());
        let below = |name: &str| root.path().join("lib").join(name);
        assert_eq!(found[0], below("python3.11/dist-packages"));
        assert_eq!(found[3], below("python3.13/site-packages"));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn what_is_no_library_is_said_with_its_path() {
        let error = Found::at("/absent/libnccl.so.2".into()).unwrap_err().to_string();
        assert!(error.contains("/absent/libnccl.so.2"), "{error}");
        // Loads, and is not NCCL.
        let error = Found::at("libc.so.6".into()).unwrap_err().to_string();
        assert!(error.contains("libc.so.6") && error.contains("nccl"), "{error}");
    }
}
