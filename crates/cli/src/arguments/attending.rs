//! The arguments of `attend`, and how a given sequence is split.

use std::path::PathBuf;

use annulus_experiment::{Device, Kernel};
use annulus_sequence::{Mask, Strategy};
use clap::{Args, ValueEnum};

use super::values::{device, ranks};
use crate::words::{Words, strategy};

#[derive(Args, Debug)]
pub(crate) struct Attend {
    /// A safetensors file with `q k v dout scale q_pos k_pos` and the mask's name in its metadata
    #[arg(long, long_help = case_help())]
    pub(crate) case: PathBuf,
    /// The safetensors file to write: `out lse dq dk dv`
    #[arg(long, alias = "output")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) split: Split,
}

/// The split of a given sequence.
#[derive(Args, Debug)]
pub(crate) struct Split {
    /// Context-parallel ranks
    #[arg(long, default_value_t = 1, value_parser = ranks())]
    pub(crate) ranks: usize,
    /// local, ring, striped, megatron, ulysses, usp, double-ring, all-gather, broadcast, halo or
    /// li-ring
    #[arg(long, value_parser = strategy, default_value = "local")]
    pub(crate) strategy: Strategy,
    #[command(flatten)]
    pub(crate) words: Words,
    /// The block kernel
    #[arg(long, value_enum, default_value_t = Which::Fused)]
    pub(crate) kernel: Which,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, value_parser = device, default_value = "auto")]
    pub(crate) device: Device,
    /// Bit-reproducible backward on a GPU
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true)]
    pub(crate) deterministic: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Which {
    /// Blockwise, fast
    Fused,
    /// Plain loops
    Reference,
}

impl From<Which> for Kernel {
    fn from(which: Which) -> Kernel {
        match which {
            Which::Fused => Kernel::Fused,
            Which::Reference => Kernel::Reference,
        }
    }
}

/// The help of `--case`.
fn case_help() -> String {
    format!(
        "A safetensors file with `q k v dout scale q_pos k_pos` and the mask's name in its metadata\n\n\
         The name joins rules by `+`: {}, documents, padding. `documents` are of the tensor `doc_ids` [S] or [B, S], \
         `padding` is of `padding` [B]. A tensor `allowed` is held to the mask.",
        Mask::WORDS
    )
}
