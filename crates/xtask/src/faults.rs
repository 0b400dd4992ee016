//! `cargo xtask faults`: injects every fault at every place of a training over two processes, under MPICH and Open MPI; or requests to
//! stop at random times; or pauses of NCCL's transfers.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{setup, tool};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the cells whose row contains these words, as in `openmpi kill`
    only: Vec<String>,
    /// Instead, ask trainings to stop at this many random times: SIGUSR1 to the launcher, SIGTERM to a process
    #[arg(long, value_name = "TIMES")]
    signals: Option<usize>,
    /// Instead, train in every way with the emulator of NCCL, with random pauses from this many seeds
    #[arg(long, value_name = "SEEDS", conflicts_with = "signals")]
    nccl: Option<u64>,
    /// Seed of the random times
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Prints the table; fails if a cell does. Full disks are mounted in a mount namespace of its own, which disappears with it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    setup::mpi()?;
    let features = ["--features", "annulus-train/emulator"];
    tool::cargo(&[&["build", "--package", "annulus-tests", "--bins"][..], &features].concat())?;
    let (faults, program) =
        (tool::program("debug", "annulus-faults")?, tool::program("debug", "annulus-under-test")?);
    let view = ["--user", "--map-root-user", "--mount"];
    let has_view =
        Command::new("unshare").args(view).arg("true").status().is_ok_and(|s| s.success());
    let mut command = if has_view {
        let mut command = Command::new("unshare");
        command.args(view).arg(faults);
        command
    } else {
        tool::say("mount namespaces are not available here: cells of full disks fail");
        Command::new(faults)
    };
    command.arg(program).args(&arguments.only);
    if let Some(seeds) = arguments.nccl {
        command.args(["nccl", &seeds.to_string()]);
    }
    if let Some(times) = arguments.signals {
        command.args(["signals", &times.to_string(), &arguments.seed.to_string()]);
    }
    if !command.status()?.success() {
        bail!("some cells fail");
    }
    Ok(())
}
