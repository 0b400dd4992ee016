//! `cargo xtask hosts`: several hosts on one machine, for what only they show: how far sending hides
//! behind computing, whether plans hold over a slow link, and that bits stay the same.
//!
//! Hosts are network namespaces, joined by a bridge at 200 Mbit/s or by a wire of ours with delay and
//! losses. Every bar is relative to our own times alone, in the same run: what a library makes of such
//! a link is not what is asked.

mod bars;
mod bits;
mod hop;
mod job;
mod network;
mod table;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

pub(crate) use self::hop::Hop;
pub(crate) use self::job::lines;
pub(crate) use self::table::{Bar, Report, Samples};

use self::job::Job;
use self::network::Network;
use crate::{root, setup, tool};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Times that everything is measured
    #[arg(long, default_value_t = 5)]
    samples: usize,
    /// Mbit/s of a host's link, each way
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Milliseconds of the wire, each way
    #[arg(long, default_value_t = 2)]
    delay: u64,
    /// Packets of a thousand that the wire loses
    #[arg(long, default_value_t = 1)]
    lost: u32,
    /// Only what is named; none: all
    what: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A step whose computing and sending take as long, and one that computes twice as long
    Overlap,
    /// Planned and measured times of strategies
    Plan,
    /// What a header and checksums take
    Hop,
    /// The bits of a training over two hosts, and over four that the wire joins
    Bits,
}

/// Measures, prints tables, and fails where a bar is missed.
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
            bars::overlap(&job, arguments.samples, &mut report)?;
        }
        if wants(Part::Plan) {
            bars::order(&job, arguments.samples, &mut report)?;
        }
        if wants(Part::Hop) {
            bars::hop(&job, arguments.samples, &mut report)?;
        }
    }
    if wants(Part::Bits) {
        bits::on_two_hosts(&folder, arguments, &mut report)?;
        bits::over_the_wire(&folder, arguments, &mut report)?;
    }
    Ok(report.end())
}

/// Where the agent, the list of hosts and runs are.
fn folder() -> Result<PathBuf> {
    let folder = root().join("target/hosts");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
