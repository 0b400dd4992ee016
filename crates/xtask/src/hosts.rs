//! `cargo xtask hosts`: simulates several hosts on one machine, to measure how much communication hides behind computing, whether plans
//! hold over a slow link, and whether bits stay the same.
//!
//! Hosts are network namespaces, joined by a bridge at 200 Mbit/s or by a simulated wire with delay and losses. Every threshold is
//! relative to our own times in the same run, so that it does not depend on how well a library uses such a link.

mod bits;
mod hop;
mod job;
mod network;
mod table;
mod thresholds;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

pub(crate) use self::hop::Hop;
pub(crate) use self::job::lines;
pub(crate) use self::table::{Report, Samples, Threshold};

use self::job::Job;
use self::network::Network;
use crate::{root, setup, tool};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Samples of every measurement
    #[arg(long, default_value_t = 5)]
    samples: usize,
    /// Bandwidth of a host's link in Mbit/s, each way
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Delay of the wire in milliseconds, each way
    #[arg(long, default_value_t = 2)]
    delay: u64,
    /// Packets that the wire loses, of a thousand
    #[arg(long, default_value_t = 1)]
    lost: u32,
    /// Parts to run [default: all]
    what: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Overlap, in a step that computes as long as it sends and in one that computes twice as long
    Overlap,
    /// Planned and measured step times of strategies
    Plan,
    /// The cost of headers and checksums
    Hop,
    /// Bits of a training over two hosts, and over four hosts joined by the wire
    Bits,
}

/// Measures, prints tables, and fails if a threshold is missed.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    network::check_tools()?;
    setup::mpi()?;
    tool::build_measuring()?;
    let wants = |part| arguments.what.is_empty() || arguments.what.contains(&part);
    let mut report = Report::default();
    let folder = folder()?;
    if [Part::Overlap, Part::Plan, Part::Hop].into_iter().any(&wants) {
        let _network = Network::shaped(2, arguments.rate)?;
        let job = Job::new(&folder, 2, network::BRIDGE)?;
        if wants(Part::Overlap) {
            thresholds::overlap(&job, arguments.samples, &mut report)?;
        }
        if wants(Part::Plan) {
            thresholds::strategies(&job, arguments.samples, &mut report)?;
        }
        if wants(Part::Hop) {
            thresholds::hop(&job, arguments.samples, &mut report)?;
        }
    }
    if wants(Part::Bits) {
        bits::on_two_hosts(&folder, arguments, &mut report)?;
        bits::over_the_wire(&folder, arguments, &mut report)?;
    }
    Ok(report.end())
}

/// The folder of the agent, the list of hosts and the runs.
fn folder() -> Result<PathBuf> {
    let folder = root().join("target/hosts");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
