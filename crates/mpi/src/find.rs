//! Finds the library of MPI that belongs to the launcher.

use std::env;
use std::path::{Path, PathBuf};

use crate::library::{Family, Library};
use crate::{Error, Launched, Result};

/// The environment variable that names a library.
pub const NAMED: &str = "ANNULUS_MPI";

/// File names of libraries of Open MPI, and of MPICH and libraries with its ABI.
const OPEN: [&str; 1] = ["libmpi.so.40"];
const MPICH: [&str; 3] = ["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12"];
/// The name that a library of either has without a version.
const UNNAMED: [&str; 1] = ["libmpi.so"];

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
    let mut tried = Vec::new();
    for path in candidates(&folders(), launched) {
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

/// The files to try, in order: in all folders those of the launcher's own family, then any.
fn candidates(folders: &[PathBuf], launched: Option<Launched>) -> Vec<PathBuf> {
    let own = match launched {
        Some(Launched { open: true, .. }) => &OPEN[..],
        Some(_) => &MPICH,
        None => &[],
    };
    let any = match launched {
        Some(Launched { open: true, .. }) => [&OPEN[..], &MPICH, &UNNAMED].concat(),
        _ => [&MPICH[..], &OPEN, &UNNAMED].concat(),
    };
    let of = |names: &[&str]| -> Vec<PathBuf> {
        folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
    };
    let first = of(own);
    let rest = of(&any).into_iter().filter(|path| !first.contains(path));
    first.iter().cloned().chain(rest).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_the_launcher_s_family_come_first_wherever_they_are() {
        let folders = [PathBuf::from("/venv/lib"), PathBuf::new()];
        let place = |open: bool, name: &str| {
            let launched = Launched { open, processes: Some(2), by: "X" };
            let all = candidates(&folders, Some(launched));
            all.iter().position(|path| path == Path::new(name)).expect(name)
        };
        assert!(place(true, "libmpi.so.40") < place(true, "/venv/lib/libmpi.so.12"));
        assert!(place(false, "libmpi.so.12") < place(false, "/venv/lib/libmpi.so.40"));
        assert!(place(true, "/venv/lib/libmpi.so.40") < place(true, "libmpi.so.40"));
        let all = candidates(&folders, None);
        assert_eq!((&*all[0], all.len()), (Path::new("/venv/lib/libmpi_abi.so.1"), 10));
    }
}
