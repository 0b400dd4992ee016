//! Arguments of commands that draw what is held and what moves.

use std::path::PathBuf;

use annulus_experiment::Override;
use annulus_sequence::Strategy;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::{ranks, replacement, svg, tokens};
use crate::words::{Words, strategy};

#[derive(Args, Debug)]
pub(crate) struct Layout {
    /// local, ring, striped, megatron, ulysses, usp, double-ring, all-gather, broadcast, halo or
    /// li-ring
    #[arg(value_parser = strategy)]
    pub(crate) strategy: Strategy,
    #[command(flatten)]
    pub(crate) words: Words,
    /// Number of ranks
    #[arg(long, default_value_t = 4, value_parser = ranks())]
    pub(crate) ranks: usize,
    /// How many positions
    #[arg(long, value_parser = tokens, default_value_t = 16)]
    pub(crate) tokens: usize,
    /// How many positions back a query sees, itself included
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) window: Option<usize>,
    /// Also what moves, hop by hop
    #[arg(long)]
    pub(crate) hops: bool,
    /// With `--hops`: every rank, hop and move, however many
    #[arg(long, requires = "hops")]
    pub(crate) all: bool,
    /// Where to write who holds what as a picture
    #[arg(long, value_name = "PATH", value_parser = svg)]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// An experiment, a run's folder, or a `trace-STEP.json` in one
    pub(crate) path: PathBuf,
    /// Values that replace an experiment's, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// The cluster that is planned on [default: the one that the experiment names, or this machine, measured]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// The layer whose hops are shown and drawn
    #[arg(long, default_value_t = 0)]
    pub(crate) layer: usize,
    /// Where to write its hops as a picture
    #[arg(long, value_name = "PATH", value_parser = svg)]
    pub(crate) svg: Option<PathBuf>,
    /// Where to write what is planned, to be opened by Perfetto beside what a run wrote
    #[arg(long, alias = "output", value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
