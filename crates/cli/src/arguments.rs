//! The command line. No flag changes a run: what a run is, is in its file.

mod asking;
mod attending;
mod drawing;
mod elsewhere;
mod examples;
mod plan;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use annulus_data::Records;
use annulus_experiment::Override;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use asking::{Evaluate, Generate};
pub(crate) use attending::{Attend, Split};
pub(crate) use drawing::{Layout, Trace};
pub(crate) use elsewhere::elsewhere;
pub(crate) use plan::Plan;
use values::ranks;
pub(crate) use values::{bytes, replacement, svg, tokens};

/// Exact long-context training of Llama-style models, the sequence split over many ranks.
#[derive(Debug, Parser)]
#[command(name = "annulus", version, about, after_help = examples::of_all())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Trains an experiment, or resumes it
    #[command(after_help = examples::TRAIN)]
    Train(Train),
    /// Trains every run of a file with a `sweep:`, and prints their table; goes on where it was stopped or killed
    #[command(after_help = examples::SWEEP)]
    Sweep(crate::sweep::Arguments),
    /// Checks an experiment, or all runs of a sweep: keys, model, memory and data
    #[command(after_help = examples::CHECK)]
    Check(Reading),
    /// Plans an experiment: mesh, balance, bytes and memory per rank, also on a described cluster
    #[command(after_help = examples::PLAN)]
    Plan(Plan),
    /// Proves the schedules of an experiment; exit code 10 if one is wrong
    #[command(after_help = examples::PROVE)]
    Prove(Reading),
    /// Draws which rank holds which positions, and what is sent
    #[command(after_help = examples::LAYOUT)]
    Layout(Layout),
    /// Shows what is computed and sent when, as planned or as recorded in a run
    #[command(after_help = examples::TRACE)]
    Trace(Trace),
    /// Compares every strategy with dense attention in f64, on an experiment's shape and mask; on the CPU, whatever `device` says
    #[command(after_help = examples::VERIFY)]
    Verify(Verify),
    /// Trains a few steps over processes that MPI joins and over threads, and compares every bit
    #[command(after_help = examples::AGREE)]
    Agree(Agree),
    /// Runs a command in one process per host, or in several by the `mpirun` that is here, and watches over them
    #[command(after_help = examples::LAUNCH)]
    Launch(Launch),
    /// Says who ended a run, where every rank stood, and who waited for whom
    #[command(after_help = examples::POST_MORTEM)]
    PostMortem(PostMortem),
    /// Evaluates a model on long texts: loss by length and by position, needles by depth, tasks
    #[command(after_help = examples::EVALUATE)]
    Evaluate(Evaluate),
    /// Generates text
    #[command(after_help = examples::GENERATE)]
    Generate(Generate),
    /// Computes loss, logits and gradients of a Hugging Face model on given tokens
    #[command(after_help = examples::SCORE)]
    Score(crate::score::Score),
    /// Computes attention and its gradients on given tensors
    #[command(after_help = examples::ATTEND)]
    Attend(Attend),
    /// Tokenizes texts into a cache
    #[command(after_help = examples::TOKENIZE)]
    Tokenize(Tokenize),
    /// Trains a tokenizer
    #[command(after_help = examples::TOKENIZER)]
    #[command(subcommand)]
    Tokenizer(Tokenizer),
    /// Shows data: documents, tokens, and which tokens count in the loss
    #[command(after_help = examples::DATA)]
    #[command(subcommand)]
    Data(Data),
    /// Exports a run's model as a Hugging Face folder
    #[command(after_help = examples::EXPORT)]
    Export(crate::export::Export),
    /// Compares runs: keys, loss, speed and memory
    #[command(after_help = examples::COMPARE)]
    Compare(crate::compare::Compare),
    /// Prints many runs as a table: means over seeds, how sure they are, and which differ by more than seeds do
    #[command(after_help = examples::TABLE)]
    Table(crate::table::Arguments),
    /// Finds where two runs that should be alike differ first, by their hashes: step, layer, tensor, message
    #[command(after_help = examples::BISECT)]
    Bisect(crate::bisect::Bisect),
    /// Runs a finished run again from what its folder holds, and says whether it came to the same, to the bit; exit code 10 if not
    #[command(after_help = examples::REPRODUCE)]
    Reproduce(crate::reproduce::Reproduce),
    /// Computes one step of a run again, and writes its gradients and the state behind it; exit code 10 if the run hashed others
    #[command(after_help = examples::REPLAY)]
    Replay(crate::replay::Replay),
    /// Writes runs as one page of HTML: losses, plan, memory, hops, what their files said
    #[command(after_help = examples::REPORT)]
    Report(crate::report::Report),
    /// Writes a run's metrics as a table
    #[command(after_help = examples::EXPORT_METRICS)]
    ExportMetrics(crate::metrics::ExportMetrics),
    /// Writes the example experiments into a folder
    #[command(after_help = examples::INIT)]
    Init(crate::init::Init),
    /// Shows what this machine offers, and what is missing
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// Explains a key of the experiment, a word that plans print, or an exit code
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        /// A key such as `data.tokens` or `tokens`, a word such as `megatron` or `hop`, or the number of an exit code
        #[arg(required = true)]
        what: Vec<String>,
    },
    /// Prints a completion script for your shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page
    #[command(after_help = examples::MAN)]
    Man {
        /// Every command with its arguments, and the exit codes, as Markdown
        #[arg(long)]
        markdown: bool,
    },
    /// Prints which strategies, masks, layouts, heads and backward routes go together
    #[command(after_help = examples::STRATEGIES)]
    Strategies,
    /// Prints the JSON Schema of the experiment file
    #[command(after_help = examples::SCHEMA)]
    Schema {
        /// A table of all keys as Markdown instead
        #[arg(long)]
        markdown: bool,
    },
}

/// An experiment and what replaces some of its values.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct File {
    /// An experiment, or a run's folder
    pub(crate) file: PathBuf,
    /// Keys to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
}

#[derive(Args, Debug)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) file: File,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print which threads MPI lets call it: begins it, which a process can do once, and of which it may die
    #[arg(long, hide = true)]
    pub(crate) begin_mpi: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) file: File,
    /// Assert the experiment's `expect` at the end; exit code 10 if it does not hold
    #[arg(long)]
    pub(crate) check: bool,
    /// Fork another run (its folder, or a `step-N`): weights, step count and optimizer state carry over; all but the model may differ
    #[arg(long, value_name = "RUN")]
    pub(crate) from: Option<PathBuf>,
    /// With `--from`: start with a fresh optimizer state
    #[arg(long, requires = "from")]
    pub(crate) fresh_optimizer: bool,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    pub(crate) verify_cache: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) file: File,
    /// Most ranks to try
    #[arg(long, default_value_t = 8, value_parser = ranks())]
    pub(crate) ranks: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Agree {
    #[command(flatten)]
    pub(crate) file: File,
    /// What is compared; processes that MPI joins are started, unless they were
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Engine::Threads, Engine::Mpi])]
    pub(crate) engines: Vec<Engine>,
    /// Processes to start; they share the ranks of the experiment evenly [default: 2]
    #[arg(short = 'n', long, value_parser = ranks())]
    pub(crate) processes: Option<usize>,
    /// Optimizer steps of every strategy and mask
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<u64>::new().range(1..=10_000))]
    pub(crate) steps: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How ranks are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// Threads of one process
    Threads,
    /// Processes that MPI joins
    Mpi,
    /// Processes that MPI joins, whose tensors go by NCCL: on GPUs, one for each
    Nccl,
}

#[derive(Args, Debug)]
pub(crate) struct Launch {
    /// Processes, which share the ranks of the experiment evenly [default: one per host, those of a Slurm allocation or this machine]
    #[arg(short = 'n', long, value_parser = ranks())]
    pub(crate) processes: Option<usize>,
    /// Start again so often where a process was lost: a run goes on from its last checkpoint
    #[arg(long, default_value_t = 0)]
    pub(crate) restarts: u32,
    /// The command, as in `train experiment.yaml`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct PostMortem {
    /// The run's folder, or one of flight records
    pub(crate) run: PathBuf,
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
    /// Folder of the caches
    #[arg(long, alias = "output")]
    pub(crate) out: PathBuf,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    pub(crate) verify_cache: bool,
    /// Print JSON
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
    /// Learns byte-pair merges from texts, reproducibly
    Train(TrainTokenizer),
}

#[derive(Args, Debug)]
pub(crate) struct TrainTokenizer {
    /// Files and folders
    #[arg(required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// Vocabulary size, with the 256 bytes and the end of a document
    #[arg(long)]
    pub(crate) vocab: usize,
    /// The inputs are lines of JSON with a field `text`
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// The tokenizer.json to write
    #[arg(long, alias = "output")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// Shows documents, tokens, and the first tokens as text, with which of them count in the loss
    Show(Show),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// A text, a folder of texts, a cache (`.tokens`), or an experiment (`.yaml`)
    pub(crate) file: PathBuf,
    /// Of an experiment: keys to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// `bytes`, or a tokenizer.json; an experiment names its own
    #[arg(long, default_value = "bytes")]
    pub(crate) tokenizer: String,
    #[command(flatten)]
    pub(crate) form: Form,
    /// Number of tokens to show
    #[arg(long, default_value_t = 64)]
    pub(crate) tokens: usize,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    pub(crate) verify_cache: bool,
}
