//! Checks and builds of the repository: `cargo xtask check | test | attack | bench | strategies | bits | hosts | exact | faults | cuda |
//! emulate | record | notebooks | browse | story | wheel | dist | setup`.
//!
//! Everything a check needs beyond a Rust toolchain, a C compiler and Python 3 is installed below `target/`.

mod arrows;
mod attack;
mod bench;
mod bits;
mod browse;
mod check;
mod cuda;
mod deny;
mod dist;
mod emulate;
mod engines;
mod exact;
mod faults;
mod fuzz;
mod hosts;
mod notebooks;
mod record;
mod setup;
mod sizes;
mod steps;
mod story;
mod strategies;
mod suite;
mod test;
mod tool;
mod untested;
mod wheel;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks and builds of the repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks format, lints, dependencies between crates, sizes, words of the glossary, licences and sources
    Check,
    /// Runs `check` and every test
    Test,
    /// Tries hostile files, data and faults on the program, and prints a table
    Attack(attack::Arguments),
    /// Measures speed and memory of an optimised build, alone or alternating with another program
    Bench(bench::Arguments),
    /// Trains an experiment with ring, striped, megatron and all-gather on 1 to 4 ranks, and compares their losses with dense attention's on one rank
    Strategies(strategies::Arguments),
    /// Trains `experiments/same-bits.yaml` in 16 ways, which must have the same bits, and in two which must not (Linux)
    Bits(bits::Arguments),
    /// Compares a training step over a long text with float64, and four ranks with one
    Exact(exact::Arguments),
    /// Injects faults into a training over two processes, under MPICH and Open MPI, and checks how each ends and what is blamed
    Faults(faults::Arguments),
    /// Measures overlap, plans and bits over slow and lossy links between two and four hosts, simulated on this machine (Linux, root)
    Hosts(hosts::Arguments),
    /// Installs the CUDA compiler, checks the kernels, builds the program with them
    Cuda {
        #[command(subcommand)]
        command: cuda::Command,
    },
    /// Tests the CUDA kernels on the CPU, or whether their tests find planted bugs
    Emulate(emulate::Arguments),
    /// Has transformers 4 and 5 and PEFT load, score and save models, compares, and records their results in `tests/fixtures`
    Record(record::Arguments),
    /// Runs the notebooks from top to bottom
    Notebooks(notebooks::Arguments),
    /// Opens a page of `annulus report` in headless Chromium or Chrome, and checks that it has every panel, no errors and no requests
    Browse(browse::Arguments),
    /// Trains a small model at 1k tokens, extends it to 8k and evaluates both
    Story {
        #[command(subcommand)]
        story: story::Story,
    },
    /// Builds the wheel with the program that the tests use, installs it, and trains a few steps
    Wheel,
    /// Builds a wheel and an archive of the program for Linux, below `target/dist`
    Dist,
    /// Installs packages that some checks need, below `target/`
    Setup {
        #[command(subcommand)]
        what: What,
    },
}

#[derive(Subcommand)]
enum What {
    /// TensorBoard's reader, transformers 5 and 4 with their PyTorch, and pyarrow
    Python,
    /// MPICH and Open MPI
    Mpi,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            tool::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    if std::env::var_os(fuzz::COMPILES).is_some() {
        return fuzz::compile();
    }
    if let Some(cargo) = std::env::var_os(wheel::STANDS_FOR) {
        return wheel::stand_in(&cargo);
    }
    match Arguments::parse().command {
        Command::Check => steps::run(&[check::STEPS, &[check::DEPENDENCIES]].concat())?,
        Command::Test => steps::run(&[check::STEPS, test::STEPS, &[check::DEPENDENCIES]].concat())?,
        Command::Attack(arguments) => attack::run(&arguments)?,
        Command::Browse(arguments) => browse::run(&arguments)?,
        Command::Bits(arguments) => bits::run(&arguments)?,
        Command::Strategies(arguments) => strategies::run(&arguments)?,
        Command::Hosts(arguments) => return hosts::run(&arguments),
        Command::Bench(arguments) => return bench::run(&arguments),
        Command::Exact(arguments) => exact::run(&arguments)?,
        Command::Faults(arguments) => faults::run(&arguments)?,
        Command::Emulate(arguments) => emulate::run(&arguments)?,
        Command::Cuda { command } => cuda::run(&command)?,
        Command::Record(arguments) => record::run(&arguments)?,
        Command::Notebooks(arguments) => notebooks::build_and_run(&arguments)?,
        Command::Story { story } => story::run(&story)?,
        Command::Wheel => wheel::run()?,
        Command::Dist => dist::run()?,
        Command::Setup { what: What::Python } => setup::python()?,
        Command::Setup { what: What::Mpi } => setup::mpi()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map(PathBuf::from)
        .unwrap_or_default()
}
