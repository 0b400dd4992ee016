//! `cargo xtask cuda setup | check | build | pack`: builds and checks the CUDA kernels, for which no GPU is needed.

mod image;
mod listing;
mod pack;
mod toolkit;

use anyhow::Result;
use clap::Subcommand;

pub(crate) use toolkit::stub_compiler;

use crate::tool;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Installs the CUDA 13.0 compiler below `target/cuda`
    Setup,
    /// Compiles the kernels for sm_80 and sm_90a (of f16 only the smallest heads), and checks registers, spills and instructions
    Check {
        /// Check every architecture that the program has code for, and f16 in every head dimension
        #[arg(long)]
        all: bool,
    },
    /// Builds `annulus` with CUDA so that it starts without a driver, and prints its path
    Build,
    /// Makes a folder that tests and times the kernels on a machine with a GPU, and prints its path
    Pack,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let toolkit = toolkit::Toolkit::set_up()?;
    match command {
        Command::Setup => {
            tool::say(&format!("CUDA_HOME={}", toolkit.home.display()));
            Ok(())
        }
        Command::Check { all } => image::check(&toolkit, *all),
        Command::Pack => pack::run(&toolkit).map(|folder| tool::say(&folder.display().to_string())),
        Command::Build => {
            pack::program(&toolkit).map(|program| tool::say(&program.display().to_string()))
        }
    }
}
