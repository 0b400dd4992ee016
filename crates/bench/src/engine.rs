//! What it costs that ranks are of several processes or hosts: `engine`.
//!
//! The same program under a launcher of MPI and without one: ranks are shared evenly among the
//! processes that were started. The first of them prints what was measured, a line of JSON per
//! point. `cargo xtask engines` and `cargo xtask hosts` start it in every way and compare.

mod hop;
mod parts;
mod rates;
mod tape;

use annulus_comm::World;
use annulus_sequence::Strategy;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::arguments::Shape;
use crate::session::Verdict;
use crate::subject::Fields;
use crate::values::{count, positive, strategy};

/// `engine`
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// What is measured
    #[arg(long, default_value = "attention")]
    measure: Measure,
    /// Ranks, over all processes
    #[arg(long, default_value_t = 4, value_parser = positive)]
    ranks: usize,
    /// Positions of the whole sequence
    #[arg(long, default_value = "4k", value_parser = count)]
    tokens: usize,
    /// How ranks share it; several with commas
    #[arg(long, default_value = "striped", value_delimiter = ',', value_parser = strategy)]
    strategies: Vec<Strategy>,
    #[command(flatten)]
    shape: Shape,
    /// Threads of this process
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    threads: usize,
    /// Samples
    #[arg(long, default_value_t = 5, value_parser = positive)]
    samples: usize,
    /// Before every sample rates are measured, and what passes take by them is printed, too
    #[arg(long)]
    planned: bool,
    /// Bytes of a hop's message
    #[arg(long, default_value = "1M", value_parser = count)]
    bytes: usize,
    /// Messages that are timed together where a hop is measured
    #[arg(long, default_value_t = 64, value_parser = positive)]
    messages: usize,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Attention, forward and backward
    Attention,
    /// Attention, its computing alone, its messages alone, and all of it with MPI's progress in waits only
    Parts,
    /// A message between two processes both ways at once, as it is and with checksums
    Hop,
    /// A message between two processes by MPI alone, with and without a header in front
    Raw,
}

/// Prints a line for every point.
pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    if arguments.measure == Measure::Raw {
        crate::record::print(&hop::raw(arguments)?);
        return Ok(Verdict::Fine);
    }
    let world = World::init(|| ())?;
    let told = points(arguments, &world);
    let why = told.as_ref().err().map(ToString::to_string);
    world.end(i32::from(why.is_some()), why.as_deref());
    told.map(|()| Verdict::Fine)
}

fn points(arguments: &Arguments, world: &World) -> Result<()> {
    let tell = |mut line: Fields| {
        if world.process() == 0 {
            line.insert("processes".into(), world.processes().into());
            line.insert("hosts".into(), hosts(world).into());
            crate::record::print(&line);
        }
    };
    match arguments.measure {
        Measure::Hop => tell(hop::ours(arguments, world)?),
        _ => {
            for strategy in &arguments.strategies {
                tell(parts::measure(arguments, *strategy, world)?);
            }
        }
    }
    Ok(())
}

/// The number of different hosts.
fn hosts(world: &World) -> usize {
    let mut names = world.hosts().to_vec();
    names.dedup();
    names.len().max(1)
}

/// The number of ranks that are threads of this process.
fn here(arguments: &Arguments, world: &World) -> Result<usize> {
    let here = world.here(arguments.ranks).with_context(|| {
        format!("{} processes cannot share {} ranks evenly", world.processes(), arguments.ranks)
    })?;
    Ok(here.len())
}
