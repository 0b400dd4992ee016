//! How fast Annulus is, and how much memory it takes, beside anything else that can be measured.
//!
//! Every measurement is a [`subject::Subject`]: something that is set up once and then run sample by
//! sample. A subject can be sampled alone, on request of another program, or in turn with one.

mod all;
mod arguments;
mod attention;
mod crew;
mod device;
mod engine;
mod gpu;
mod llama;
mod longest;
mod machine;
mod memory;
mod million;
mod model;
mod pairs;
mod peer;
mod plan;
mod record;
mod resident;
mod ring;
mod saves;
mod serve;
mod session;
mod statistics;
mod step;
mod strict;
mod subject;
mod tokenize;
mod values;
mod wire;

use std::process::ExitCode;

use annulus_memory::Counting;
use annulus_train::prepare_process;
use anyhow::Result;
use clap::Parser;
use mimalloc::MiMalloc;

use crate::arguments::{Arguments, Command};
use crate::session::Verdict;

/// The allocator that `annulus` uses: what is measured here is what it does.
#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting::new(MiMalloc);

/// The exit code when a figure misses its bound.
const MISSED: u8 = 10;

fn main() -> ExitCode {
    // SAFETY: no other thread exists yet.
    unsafe { prepare_process() };
    match run(&Arguments::parse()) {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Missed(why)) => {
            say(&format!("missed: {why}"));
            ExitCode::from(MISSED)
        }
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Verdict> {
    match &arguments.command {
        Command::Attention(arguments) => attention::run(arguments),
        Command::Step(arguments) => step::run(arguments),
        Command::Ring(arguments) => ring::run(arguments),
        Command::Memory(arguments) => memory::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Wire(arguments) => wire::run(arguments),
        Command::Engine(arguments) => engine::run(arguments),
        Command::Saves(arguments) => saves::run(arguments),
        Command::Strict(arguments) => strict::run(arguments),
        Command::Million(arguments) => million::run(arguments),
        Command::Tokenize(arguments) => tokenize::run(arguments),
        Command::Gpu(arguments) => gpu::run(arguments),
        Command::All(arguments) => all::run(arguments),
    }
}

/// Prints a line for people; what programs read goes to standard output.
#[expect(clippy::print_stderr, reason = "the one place that talks")]
fn say(line: &str) {
    eprintln!("{line}");
}
