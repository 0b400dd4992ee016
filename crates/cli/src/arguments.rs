//! The command line. No flag changes a run: what a run is, is in its file.

mod asking;
mod elsewhere;
mod examples;
mod values;

use std::path::PathBuf;

use annulus_data::Records;
use annulus_experiment::{Device, Kernel, Override};
use annulus_sequence::{Mask, Strategy};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use asking::{Evaluate, Generate};
pub(crate) use elsewhere::elsewhere;
use values::{bandwidth, device, elements, ranks, replacement};
pub(crate) use values::{bytes, tokens};

use crate::words::{Words, strategy};

/// Exact long-context training of Llama-style models, the sequence split over many ranks.
#[derive(Debug, Parser)]
#[command(name = "annulus", version, about, after_help = examples::of_all())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Trains what an experiment describes; resumes where it stopped
    #[command(after_help = examples::TRAIN)]
    Train(Train),
    /// Reads an experiment and says everything that is wrong with it
    #[command(after_help = examples::CHECK)]
    Check(Reading),
    /// What an experiment would do: mesh, positions, balance, bytes and memory per rank
    #[command(after_help = examples::PLAN)]
    Plan(Plan),
    /// Proves the schedules of an experiment: exit code 10 if one does not hold
    #[command(after_help = examples::PROVE)]
    Prove(Reading),
    /// Who holds what, drawn
    #[command(after_help = examples::LAYOUT)]
    Layout(Layout),
    /// What moves when: as an experiment is planned, or as a run was measured
    #[command(after_help = examples::TRACE)]
    Trace(Trace),
    /// Holds every strategy to dense attention on an experiment's shape and mask
    #[command(after_help = examples::VERIFY)]
    Verify(Verify),
    /// Evaluates a model on long texts: loss by length and by position, needles by depth, tasks
    #[command(after_help = examples::EVALUATE)]
    Evaluate(Evaluate),
    /// Continues a text
    #[command(after_help = examples::GENERATE)]
    Generate(Generate),
    /// Loss, logits and gradients of a Hugging Face model on given tokens
    #[command(after_help = examples::SCORE)]
    Score(crate::score::Score),
    /// Attention and its gradients on given tensors
    #[command(after_help = examples::ATTEND)]
    Attend(Attend),
    /// Text to a token cache
    #[command(after_help = examples::TOKENIZE)]
    Tokenize(Tokenize),
    /// Your own tokenizer
    #[command(after_help = examples::TOKENIZER)]
    #[command(subcommand)]
    Tokenizer(Tokenizer),
    /// What is in data
    #[command(after_help = examples::DATA)]
    #[command(subcommand)]
    Data(Data),
    /// A run's model as a folder of its own, which Hugging Face's programs load
    #[command(after_help = examples::EXPORT)]
    Export(crate::export::Export),
    /// Runs beside each other: what differs in their files, loss, speed and memory
    #[command(after_help = examples::COMPARE)]
    Compare(crate::compare::Compare),
    /// What a run measured, as a table
    #[command(after_help = examples::EXPORT_METRICS)]
    ExportMetrics(crate::metrics::ExportMetrics),
    /// What this machine offers, and what is missing
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// What a key of the experiment means, or an exit code
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        /// A key such as `data.tokens` or `tokens`, or the number of an exit code
        what: String,
    },
    /// A script that completes commands in your shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// The manual page
    #[command(after_help = examples::MAN)]
    Man,
    /// What goes together: every strategy by mask, layout, heads and backward route, as Markdown
    #[command(after_help = examples::STRATEGIES)]
    Strategies,
    /// The JSON Schema of the experiment file
    #[command(after_help = examples::SCHEMA)]
    Schema {
        /// Every key with what it takes, its default and its meaning instead, as Markdown
        #[arg(long)]
        markdown: bool,
    },
}

/// An experiment and what replaces some of its values.
#[derive(Args, Clone, Debug)]
pub(crate) struct File {
    /// The experiment, or the folder of a run of it
    pub(crate) file: PathBuf,
    /// Values that replace the file's, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
}

#[derive(Args, Debug)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) file: File,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Plan {
    /// The experiment
    #[arg(required_unless_present = "compare")]
    pub(crate) file: Option<PathBuf>,
    /// Values that replace the file's, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Every strategy on this described cluster: step, waiting, memory, and what `auto` would take
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub(crate) cluster: Option<PathBuf>,
    /// Instead, the best strategy for 1M to 1G tokens on 8 to all devices of the cluster
    #[arg(long, requires = "cluster", conflicts_with = "svg")]
    pub(crate) scale: bool,
    /// Where to write the sweet spot of length against devices as a picture
    #[arg(long, value_name = "PATH", requires = "cluster")]
    pub(crate) svg: Option<PathBuf>,
    /// The classic table of ways to split attention; needs no experiment
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
    /// Elements of a token's queries
    #[arg(long, value_parser = elements(), default_value_t = 4096, requires = "compare")]
    pub(crate) hidden: usize,
    /// Elements of a head
    #[arg(long, value_parser = elements(), default_value_t = 128, requires = "compare")]
    pub(crate) head_dim: usize,
    /// Key/value heads [default: as many as query heads]
    #[arg(long, value_parser = elements(), requires = "compare")]
    pub(crate) key_value_heads: Option<usize>,
    /// How many ranks
    #[arg(long, default_value_t = 8, value_parser = ranks(), requires = "compare")]
    pub(crate) ranks: usize,
    /// A rank's link, in powers of 1024
    #[arg(long, value_parser = bandwidth, default_value = "200GB/s", requires = "compare")]
    pub(crate) bandwidth: f64,
    /// Bytes of an element
    #[arg(long, value_parser = elements(), default_value_t = 2, requires = "compare")]
    pub(crate) element: usize,
    /// Keys that a query sees in the sliding window
    #[arg(long, value_parser = tokens, default_value = "4k", requires = "compare")]
    pub(crate) window: usize,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) file: File,
    /// Afterwards, assert the experiment's `expect`: exit code 10 if it does not hold
    #[arg(long)]
    pub(crate) check: bool,
    /// Begin where another run is: its folder, or a `step-N` in it; steps go on counting, and all but the model may differ
    #[arg(long, value_name = "RUN")]
    pub(crate) from: Option<PathBuf>,
    /// With `--from`: the optimizer begins anew
    #[arg(long, requires = "from")]
    pub(crate) fresh_optimizer: bool,
    /// Reads texts and token caches and holds them to their hashes, though nothing says that they have changed
    #[arg(long)]
    pub(crate) verify_cache: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Layout {
    /// local, ring, striped, megatron, ulysses, usp, double-ring, all-gather, broadcast, halo or
    /// li-ring
    #[arg(value_parser = strategy)]
    pub(crate) strategy: Strategy,
    #[command(flatten)]
    pub(crate) words: Words,
    /// How many ranks
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
    /// For programs
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
    #[arg(long, value_name = "PATH")]
    pub(crate) svg: Option<PathBuf>,
    /// Where to write what is planned, to be opened by Perfetto beside what a run wrote
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) file: File,
    /// The most ranks to try
    #[arg(long, default_value_t = 8, value_parser = ranks())]
    pub(crate) ranks: usize,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Attend {
    /// A safetensors file with `q k v dout scale q_pos k_pos` and the mask's name in its metadata
    #[arg(long, long_help = case_help())]
    pub(crate) case: PathBuf,
    /// The safetensors file to write: `out lse dq dk dv`
    #[arg(long)]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) split: Split,
}

/// The split of a given sequence.
#[derive(Args, Debug)]
pub(crate) struct Split {
    /// How many ranks share the sequence
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
    /// Whether backward gives the same bits every time on a GPU too
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true)]
    pub(crate) deterministic: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Tokenize {
    /// Files and folders
    #[arg(required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// `bytes`, or a tokenizer.json
    #[arg(long, default_value = "bytes")]
    pub(crate) tokenizer: String,
    #[command(flatten)]
    pub(crate) form: Form,
    /// The folder of caches
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Reads texts and token caches and holds them to their hashes, though nothing says that they have changed
    #[arg(long)]
    pub(crate) verify_cache: bool,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// The form of the inputs.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Form {
    /// The inputs are lines of JSON with a field `text`
    #[arg(long)]
    jsonl: bool,
    /// The inputs are lines of JSON with a field `messages`, for the tokenizer's chat template
    #[arg(long, conflicts_with = "jsonl")]
    chat: bool,
}

impl Form {
    pub(crate) fn records(self) -> Records {
        match (self.jsonl, self.chat) {
            (_, true) => Records::Chats,
            (true, _) => Records::Lines,
            _ => Records::Text,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tokenizer {
    /// Learns byte pairs from texts; the same file every time
    Train(TrainTokenizer),
}

#[derive(Args, Debug)]
pub(crate) struct TrainTokenizer {
    /// Files and folders
    #[arg(required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// How many tokens, the 256 bytes and the end of a document among them
    #[arg(long)]
    pub(crate) vocab: usize,
    /// The inputs are lines of JSON with a field `text`
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// The tokenizer.json to write
    #[arg(long)]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// Documents, tokens, and the first tokens as text, with what of them is learned
    Show(Show),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// A text, a folder of texts, a cache (`.tokens`), or an experiment (`.yaml`)
    pub(crate) file: PathBuf,
    /// Of an experiment: values that replace the file's, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// `bytes`, or a tokenizer.json; an experiment names its own
    #[arg(long, default_value = "bytes")]
    pub(crate) tokenizer: String,
    #[command(flatten)]
    pub(crate) form: Form,
    /// How many tokens are shown
    #[arg(long, default_value_t = 64)]
    pub(crate) tokens: usize,
    /// Reads texts and token caches and holds them to their hashes, though nothing says that they have changed
    #[arg(long)]
    pub(crate) verify_cache: bool,
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
