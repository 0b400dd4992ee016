//! The command line of `annulus plan`.

use std::path::PathBuf;

use annulus_experiment::Override;
use clap::Args;

use super::values::{bandwidth, elements, ranks, replacement, svg, tokens};

/// What goes with `plan --compare` alone.
const OF_COMPARE: [&str; 9] = [
    "compare",
    "tokens",
    "hidden",
    "head_dim",
    "key_value_heads",
    "ranks",
    "bandwidth",
    "element",
    "window",
];

#[derive(Args, Debug)]
pub(crate) struct Plan {
    /// The experiment
    #[arg(required_unless_present = "compare")]
    pub(crate) file: Option<PathBuf>,
    /// Keys to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare all strategies on this described cluster: step time, exposed communication, memory, and what `auto` takes
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_COMPARE)]
    pub(crate) cluster: Option<PathBuf>,
    /// Print the best strategy for 64k to 1G tokens on 8 to all devices of the cluster instead
    #[arg(long, requires = "cluster", conflicts_with = "svg")]
    pub(crate) scale: bool,
    /// Write a picture of efficiency by sequence length and devices
    #[arg(long, value_name = "PATH", value_parser = svg, requires = "cluster")]
    pub(crate) svg: Option<PathBuf>,
    /// Compare memory and communication of all ways to split one layer's attention; needs no experiment
    #[arg(long)]
    pub(crate) compare: bool,
    #[command(flatten)]
    pub(crate) comparison: Comparison,
}

/// The sizes of `plan --compare`.
#[derive(Args, Debug)]
pub(crate) struct Comparison {
    /// Tokens of the sequence
    #[arg(long, value_parser = tokens, default_value = "1M", requires = "compare")]
    pub(crate) tokens: usize,
    /// Hidden size of the queries
    #[arg(long, value_parser = elements(), default_value_t = 4096, requires = "compare")]
    pub(crate) hidden: usize,
    /// Head dimension
    #[arg(long, value_parser = elements(), default_value_t = 128, requires = "compare")]
    pub(crate) head_dim: usize,
    /// KV heads [default: as many as query heads]
    #[arg(long, value_parser = elements(), requires = "compare")]
    pub(crate) key_value_heads: Option<usize>,
    /// Number of ranks
    #[arg(long, default_value_t = 8, value_parser = ranks(), requires = "compare")]
    pub(crate) ranks: usize,
    /// Bandwidth of a rank's link, in powers of 1024
    #[arg(long, value_parser = bandwidth, default_value = "200GB/s", requires = "compare")]
    pub(crate) bandwidth: f64,
    /// Bytes per element
    #[arg(long, value_parser = elements(), default_value_t = 2, requires = "compare")]
    pub(crate) element: usize,
    /// Sliding window in keys
    #[arg(long, value_parser = tokens, default_value = "4k", requires = "compare")]
    pub(crate) window: usize,
}
