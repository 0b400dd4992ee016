//! `annulus launch`: a command in several processes of this machine, by the launcher of MPI that is here.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use annulus_comm::World;
use annulus_train::Exit;

use crate::arguments::Launch;
use crate::failure::{Failure, USAGE};
use crate::{Done, print};

/// The key of the environment that names a launcher.
const NAMED: &str = "ANNULUS_MPIRUN";
/// Exit codes after which the same command may do better: a rank that died or waited too long.
const WORTH_ANOTHER: [u8; 2] = [Exit::Deadline.code(), Exit::RankDied.code()];
/// What a shell adds to the number of the signal that ended a process.
const SIGNALLED: i32 = 128;

pub(crate) fn run(arguments: &Launch) -> Done {
    let launcher = launcher()?;
    let own = env::current_exe()
        .map_err(|error| Failure::new(USAGE, format!("cannot find this program: {error}"), None))?;
    let mut left = arguments.restarts;
    loop {
        let mut command = Command::new(&launcher);
        command.args(flags(&launcher)).args(["-n", &arguments.processes.to_string()]);
        command.arg(&own).args(&arguments.command);
        // What the launcher is told from outside, its processes are.
        let status = command.status().map_err(|error| {
            let message = format!("`{}` does not start: {error}", launcher.display());
            Failure::usage(message, format!("name another: {NAMED}=/path/to/mpirun"))
        })?;
        let code = code(status);
        if left == 0 || !is_worth_another(status, code) {
            return Ok(code);
        }
        left -= 1;
        print::say(&format!("ended with {code}: started again, {left} times left"));
    }
}

/// The launcher that is named, or that of the path.
fn launcher() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os(NAMED) {
        return Ok(PathBuf::from(named));
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    let candidates = env::split_paths(&paths)
        .flat_map(|folder| ["mpirun", "mpiexec"].map(|name| folder.join(name)));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        let message = "there is no `mpirun` on this machine's path";
        let hint = format!(
            "install one (`pip install mpich`), name one with {NAMED}, or train without: ranks are threads then"
        );
        Failure::usage(message, hint)
    })
}

/// Open MPI starts no more processes than there are cores, and none for root, unless it is told to.
fn flags(launcher: &std::path::Path) -> Vec<&'static str> {
    let version = Command::new(launcher).arg("--version").output();
    let is_open = version.is_ok_and(|said| {
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.contains("Open MPI") || said.contains("PRRTE")
    });
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    match (is_open, is_root) {
        (true, true) => vec!["--oversubscribe", "--allow-run-as-root"],
        (true, false) => vec!["--oversubscribe"],
        _ => Vec::new(),
    }
}

fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let signalled = status.signal().map(|signal| SIGNALLED + signal);
    let code = status.code().or(signalled).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// Whether a process was lost: by our own codes, or by the signal that ended it, as launchers pass it on.
fn is_worth_another(status: ExitStatus, code: u8) -> bool {
    let killed = i32::from(code) >= SIGNALLED || code == libc::SIGKILL as u8;
    !status.success() && (killed || WORTH_ANOTHER.contains(&code))
}

/// What joins processes here, in a line.
pub(crate) fn engine() -> String {
    World::engine().unwrap_or_else(|error| format!("none: {}", error.what))
}
