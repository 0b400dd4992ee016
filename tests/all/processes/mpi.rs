//! The launchers of both families of MPI.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use annulus_tests::runs::Place;
use annulus_tests::{Ran, root};

use super::ANNULUS;

/// A family of MPI that `cargo xtask setup mpi` installed.
#[derive(Clone, Copy)]
pub(super) struct Mpi {
    pub(super) name: &'static str,
    /// What lets it start more processes than there are cores, by whoever runs the tests.
    pub(super) flags: &'static [&'static str],
}

pub(super) const MPICH: Mpi = Mpi { name: "mpich", flags: &[] };
pub(super) const OPEN_MPI: Mpi =
    Mpi { name: "openmpi", flags: &["--allow-run-as-root", "--oversubscribe"] };

impl Mpi {
    /// Its launcher, or `None`, said aloud.
    #[expect(clippy::print_stdout, reason = "a skipped test says so")]
    pub(super) fn launcher(self) -> Option<PathBuf> {
        let path = root().join("target/python").join(self.name).join("bin/mpirun");
        if path.exists() {
            return Some(path);
        }
        println!("SKIPPED: {} is not there: `cargo xtask setup mpi`", path.display());
        None
    }

    /// The command of so many processes, in a folder.
    pub(super) fn command(
        self,
        place: &Place,
        processes: usize,
        arguments: &[&str],
    ) -> Option<Command> {
        let mut command = Command::new(self.launcher()?);
        command.args(self.flags).args(["-n", &processes.to_string(), ANNULUS]).args(arguments);
        command.current_dir(place.path("")).stdin(Stdio::null());
        Some(command)
    }

    /// Runs them to their end. Open MPI's launcher sometimes fails before it has started any process: it is started again.
    #[expect(clippy::print_stdout, reason = "a second start is said")]
    pub(super) fn run(self, place: &Place, processes: usize, arguments: &[&str]) -> Option<Ran> {
        const NOT_BEGUN: &str = "listener thread failed to start";
        let mut command = self.command(place, processes, arguments)?;
        let mut start = || Ran::of(&command.output().expect("the launcher starts"));
        let ran = start();
        if !ran.stderr.contains(NOT_BEGUN) {
            return Some(ran);
        }
        println!("{}: {NOT_BEGUN}; started again", self.name);
        Some(start())
    }
}
