//! Which launcher started this process, and where its library of MPI is.

use std::env;
use std::path::{Path, PathBuf};

use crate::library::{Family, Library};
use crate::{Error, Result};

/// The key of the environment that names a library.
pub const NAMED: &str = "ANNULUS_MPI";

/// Names of libraries, the launcher's own family first: of Open MPI, and of MPICH and its kin.
const OPEN: [&str; 2] = ["libmpi.so.40", "libmpi.so"];
const MPICH: [&str; 4] = ["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12", "libmpi.so"];

/// A launcher that started this process as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Whether it is Open MPI's; else one that speaks PMI: MPICH's, Slurm's.
    pub open: bool,
    /// How many processes it said it started.
    pub processes: usize,
}

/// A library that can be loaded.
pub struct Found {
    /// Where.
    pub path: PathBuf,
    /// Whose constants it has.
    pub family: Family,
    pub(crate) library: Library,
}

impl Found {
    fn load(path: PathBuf) -> Result<Found> {
        let (library, family) = Library::load(&path)?;
        Ok(Found { path, family, library })
    }

    /// What the library says of itself, its first line up to a comma.
    pub fn version(&self) -> String {
        self.library.version()
    }
}

/// Who started this process, by what launchers leave in the environment; `None`: nobody did.
pub fn launched() -> Option<Launched> {
    let number = |key: &str| env::var(key).ok().and_then(|text| text.parse::<usize>().ok());
    if let Some(processes) = number("OMPI_COMM_WORLD_SIZE") {
        return Some(Launched { open: true, processes });
    }
    if let Some(processes) = number("PMI_SIZE") {
        return Some(Launched { open: false, processes });
    }
    // `srun --mpi=pmix`: either family may be behind it.
    let pmix = env::var_os("PMIX_RANK").is_some();
    let processes = number("SLURM_NTASKS").filter(|_| pmix)?;
    Some(Launched { open: true, processes })
}

/// The library that belongs to the launcher, or any.
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

/// Where to look: beside the launcher that is above this process, beside the `mpirun` of the path, and where the system looks.
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

/// The programs of this process's parent and of that one's, where the system says.
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
