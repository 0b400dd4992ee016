//! Simulates hosts by network namespaces, joined by a bridge; HTB limits the bandwidth of each.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The network of the bridge.
pub(super) const BRIDGE: &str = "10.77.0.0/24";
/// The network of the wire.
pub(super) const WIRE: &str = "10.88.0.0/24";
/// The most hosts.
pub(super) const MOST: usize = 4;
const NAME: &str = "annulus-bridge";

/// The name of a host.
pub(super) fn host(number: usize) -> String {
    format!("annulus{number}")
}

/// The bridge's end of a host's link.
fn end(number: usize) -> String {
    format!("annulus-v{number}")
}

/// Hosts, which are removed when this is dropped.
pub(super) struct Network {
    /// A process that removes them if this one ends in any other way.
    sweeper: Child,
}

/// Fails with the name of a missing tool.
pub(super) fn check_tools() -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("hosts are network namespaces, which only Linux has");
    }
    for (tool, package) in [
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("nsenter", "util-linux"),
        ("unshare", "util-linux"),
        ("taskset", "util-linux"),
    ] {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output()?;
        ensure!(
            found.status.success(),
            "`{tool}` is not on this machine's path (package {package})"
        );
    }
    let tried = format!("{}-try", host(0));
    ip(&["netns", "add", &tried]).context(
        "network namespaces cannot be made: that takes root (CAP_NET_ADMIN and CAP_SYS_ADMIN)",
    )?;
    ip(&["netns", "del", &tried])
}

impl Network {
    /// Makes `hosts` hosts on a bridge, each sending at most `rate` Mbit/s.
    pub(super) fn shaped(hosts: usize, rate: u32) -> Result<Network> {
        let network = Network::plain(hosts)?;
        for number in 1..=hosts {
            let (name, rate) = (host(number), format!("{rate}mbit"));
            tc(
                &name,
                &["qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1"],
            )?;
            let class = ["class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb"];
            let limits = ["rate", &rate, "ceil", &rate, "burst", "32k", "cburst", "32k"];
            tc(&name, &[&class[..], &["quantum", "60000"], &limits].concat())?;
            let queue = ["qdisc", "add", "dev", "eth0", "parent", "1:1", "bfifo", "limit", "256k"];
            tc(&name, &queue)?;
        }
        Ok(network)
    }

    /// Makes `hosts` hosts on a bridge.
    pub(super) fn plain(hosts: usize) -> Result<Network> {
        ensure!(hosts <= MOST, "{hosts} hosts, wanted at most {MOST}");
        let swept = Command::new("sh").args(["-c", &sweeping()]).status()?;
        ensure!(swept.success(), "hosts of an earlier run cannot be removed");
        let taken = Command::new("ip").args(["-4", "-o", "addr", "show", "to", BRIDGE]).output()?;
        let taken = String::from_utf8_lossy(&taken.stdout).into_owned();
        // Open MPI's launcher crashes if an address exists twice.
        ensure!(taken.is_empty(), "addresses of {BRIDGE} are taken on this machine: {taken}");
        // The script reads until this process has ended, however it does, and then removes the hosts.
        let script = format!("trap '' INT TERM HUP; read line; {}", sweeping());
        let sweeper = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn()?;
        let network = Network { sweeper };
        ip(&["link", "add", NAME, "type", "bridge"])?;
        ip(&["addr", "add", "10.77.0.254/24", "dev", NAME])?;
        ip(&["link", "set", NAME, "up"])?;
        for number in 1..=hosts {
            let (name, end) = (host(number), end(number));
            ip(&["netns", "add", &name])?;
            let pair = ["link", "add", &end, "type", "veth", "peer", "name", "eth0"];
            ip(&[&pair[..], &["netns", &name]].concat())?;
            ip(&["link", "set", &end, "master", NAME, "up"])?;
            ip(&["-n", &name, "addr", "add", &format!("10.77.0.{number}/24"), "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The end of its input tells it to begin.
        drop(self.sweeper.stdin.take());
        let _ = self.sweeper.wait();
    }
}

/// A script that ends the processes in hosts and removes the hosts, if there are any.
fn sweeping() -> String {
    let one = |number| {
        let (name, end) = (host(number), end(number));
        // A namespace, and its link with it, is removed asynchronously.
        format!(
            "if [ -e /run/netns/{name} ]; then \
             ip netns pids {name} | while read process; do kill -9 $process; done; \
             ip netns del {name}; fi; \
             if [ -e /sys/class/net/{end} ]; then ip link del {end}; fi; "
        )
    };
    let all: String = (1..=MOST).map(one).collect();
    let bridge = format!("if [ -e /sys/class/net/{NAME} ]; then ip link del {NAME}; fi;");
    format!("{{ {all} {bridge} }} 2>/dev/null; true")
}

/// Runs `ip`.
pub(super) fn ip(words: &[&str]) -> Result<()> {
    said("ip", words)
}

fn tc(host: &str, words: &[&str]) -> Result<()> {
    said("tc", &[&["-n", host], words].concat())
}

/// Runs a tool, whose output becomes the error if it fails.
fn said(program: impl AsRef<Path>, words: &[&str]) -> Result<()> {
    let program = program.as_ref();
    let shown = format!("{} {}", program.display(), words.join(" "));
    let output = Command::new(program)
        .args(words)
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{shown}`: {}", why.trim());
    Ok(())
}
