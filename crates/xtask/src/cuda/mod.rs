//! `cargo xtask cuda setup | check | build | pack`: the CUDA kernels on a machine that need not have a GPU.

mod image;
mod listing;
mod pack;
mod toolkit;

use anyhow::Result;
use clap::Subcommand;

pub(crate) use toolkit::mute_compiler;

use crate::tool;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Installs the CUDA 13.0 compiler below `target/cuda`
    Setup,
    /// Compiles the kernels for sm_80 and sm_90a, of f16 the smallest heads alone, and holds registers, spills and instructions to what is wanted
    Check {
        /// For every architecture that the image has code for, f16 in every head dimension
        #[arg(long)]
        all: bool,
    },
    /// Builds `annulus` with CUDA so that it starts without a driver, and prints where it is
    Build,
    /// Fills one folder that checks and times the kernels on a machine with a GPU, and prints where it is
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
