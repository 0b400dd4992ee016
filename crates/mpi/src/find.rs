//! Finds the library of MPI that belongs to the launcher.

use std::env;
use std::path::{Path, PathBuf};

use crate::library::{Family, Library};
use crate::{Error, Launched, Result};

/// The environment variable that names a library.
pub const NAMED: &str = "ANNULUS_MPI";

/// File names of libraries of Open MPI, and of MPICH and libraries with its ABI.
const OPEN: [&str; 2] = ["libmpi.so.40", "libmpi.so"];
const MPICH: [&str; 4] = ["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so"];

/// A library of MPI that was loaded.
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// The family whose constants it has.
    pub family: Family,
    pub(crate) library: Library,
}

impl Found {
    fn load(path: PathBuf) -> Result<Found> {
        let (library, family) = Library::load(&path)?;
        Ok(Found { path, family, library })
    }

    /// The first line of the library's description of itself, up to a comma.
    pub fn version(&self) -> String {
        self.library.version()
    }
}

/// Loads the library that belongs to the launcher, or any if there is no launcher.
///
/// # Errors
/// When there is none that can be loaded, with what was tried.
pub fn find(launched: Option<Launched>) -> Result<Found> {
    if let Some(path) = env::var_os(NAMED).map(PathBuf::from) {
        return Found::load(path);
    }
    let names: Vec<&str> = match launched {
        Some(Launched { open: true, .. }) => OPEN.into_iter().chain(MPICH).collect(),
        _ => MPICH.into_iter().chain(OPEN).collect(),
    };
    let mut tried = Vec::new();
    for path in folders().iter().flat_map(|folder| names.iter().map(|name| folder.join(name))) {
        let is_bare = path.parent().is_some_and(|folder| folder.as_os_str().is_empty());
        if !is_bare && !path.exists() {
            continue;
        }
        match Found::load(path) {
            Ok(found) => return Ok(found),
            Err(error) => tried.push(error.to_string()),
        }
    }
    let what = String::from("no library of MPI was found");
    let why = format!("name one with {NAMED}=/path/to/libmpi.so ({})", tried.join("; "));
    Err(Error { what, why })
}

/// Folders to look in: those beside the launcher that started this process and beside the `mpirun` in `PATH`, and where the system
/// looks.
fn folders() -> Vec<PathBuf> {
    let beside =
        |program: &Path| program.parent().and_then(Path::parent).map(|top| top.join("lib"));
    let parents = ancestors().into_iter().filter_map(|exe| beside(&exe));
    let paths = env::var_os("PATH").unwrap_or_default();
    let launchers = env::split_paths(&paths).map(|folder| folder.join("mpirun"));
    let launchers = launchers.filter(|path| path.exists()).filter_map(|path| beside(&path));
    let mut folders: Vec<PathBuf> = parents.chain(launchers).collect();
    folders.dedup();
    folders.push(PathBuf::new());
    folders
}

/// The programs of this process's parent and grandparent, where the system says.
fn ancestors() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut process = std::os::unix::process::parent_id();
    for _ in 0..2 {
        found.extend(std::fs::read_link(format!("/proc/{process}/exe")));
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        let above = status.ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            line.trim().parse().ok()
        });
        let Some(above) = above.filter(|above| *above > 1) else { break };
        process = above;
    }
    found
}
