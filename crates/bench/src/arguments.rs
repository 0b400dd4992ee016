//! The command line.

use std::path::PathBuf;

use annulus_experiment::{Offload, Recompute};
use annulus_sequence::{Mask, Strategy};
use candle_core::DType;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::model::Model;
use crate::values::{count, mask, offload, positive, recompute, strategy};

/// How fast Annulus is, and how much memory it takes, beside anything else that can be measured
///
/// Every measurement prints a line of JSON per point. Times leave out setting up; the first run warms up. Counts may end in `k` or `M`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The attention kernel: speed, and its share of the processor's peak
    Attention(Attention),
    /// A training step of a Llama: tokens per second, FLOP/s, loss, memory
    Step(Step),
    /// Attention or the step split over ranks, against another strategy or the unsplit step
    Ring(Ring),
    /// Memory of every rank by class beside the plan, while the sequence grows with the ranks
    Memory(Memory),
    /// Bytes, peak memory and the order of step times of strategies, as planned and as they are
    Plan(crate::plan::Arguments),
    /// Errors and bytes by communication types and the number of ranks
    Wire(crate::wire::Arguments),
    /// Attention, messages and rates over the processes that a launcher of MPI started
    Engine(crate::engine::Arguments),
    /// The step of `experiments/million-tokens.yaml`
    Million(Million),
    /// Steps while checkpoints are written beside them, and without
    Saves(Saves),
    /// Steps and attention with order-free sums (`reproducible: strict`), and with sums in one order
    Strict(crate::strict::Arguments),
    /// A text of one line, and one ten times as long: time per byte, and memory
    Tokenize(crate::tokenize::Arguments),
    /// The attention kernels on a GPU
    Gpu(Gpu),
    /// Everything above against what others use, one after the other
    All(All),
}

/// How a measurement is made.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Common {
    /// Print `{"ready": true}`, then one sample for every line `go` on standard input, until `quit`
    #[arg(long, conflicts_with_all = ["against", "at_least", "record"])]
    pub(crate) serve: bool,
    /// Measure in turn with a program that speaks as `--serve` does; the last line is how many times faster we are, with quartiles
    #[arg(long, value_name = "COMMAND")]
    pub(crate) against: Option<String>,
    /// Pairs of samples, if there is something to compare with
    #[arg(long, default_value_t = 15, value_parser = positive)]
    pub(crate) pairs: usize,
    /// Samples, if there is nothing to compare with
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub(crate) samples: usize,
    /// Exit with 10 below this ratio; of attention alone, below this share of the processor's peak
    #[arg(long, value_name = "RATIO")]
    pub(crate) at_least: Option<f64>,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
    /// Cores that other programs may keep busy during a pair that counts [default: by threads]
    #[arg(long, value_name = "CORES")]
    pub(crate) foreign: Option<f64>,
}

/// `attention`
#[derive(Args, Clone, Debug)]
pub(crate) struct Attention {
    /// Positions; several with commas
    #[arg(long, default_value = "4k", value_delimiter = ',', value_parser = count)]
    pub(crate) tokens: Vec<usize>,
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Elements' type
    #[arg(long, default_value = "f32")]
    pub(crate) dtype: Dtype,
    /// Which direction is timed
    #[arg(long, default_value = "forward")]
    pub(crate) pass: Pass,
    /// Threads
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Heads and mask of an attention.
#[derive(Args, Clone, Debug)]
pub(crate) struct Shape {
    /// Query heads
    #[arg(long, default_value_t = 8, value_parser = positive)]
    pub(crate) heads: usize,
    /// Key/value heads [default: as many as query heads]
    #[arg(long, value_parser = positive)]
    pub(crate) kv_heads: Option<usize>,
    /// Elements per head
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub(crate) head_dim: usize,
    /// `causal`, `full`, or `window:N`: causal, each query and the N - 1 before it
    #[arg(long, default_value = "causal", value_parser = mask)]
    pub(crate) mask: NamedMask,
}

impl Shape {
    /// Key/value heads.
    pub(crate) fn groups(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }
}

/// A mask and what it was called.
#[derive(Clone, Debug)]
pub(crate) struct NamedMask {
    pub(crate) name: String,
    pub(crate) mask: Mask,
}

/// `step`
#[derive(Args, Clone, Debug)]
pub(crate) struct Step {
    /// Positions of the one sequence; several with commas
    #[arg(long, default_value = "4k", value_delimiter = ',', value_parser = count)]
    pub(crate) tokens: Vec<usize>,
    #[command(flatten)]
    pub(crate) model: Model,
    /// Activation checkpointing: `none` or `layer`
    #[arg(long, default_value = "none", value_parser = recompute)]
    pub(crate) recompute: Recompute,
    /// What is offloaded until it is needed: `none`, `activations`, `optimizer` or `both`
    #[arg(long, default_value = "none", value_parser = offload)]
    pub(crate) offload: Offload,
    /// Threads, over all ranks
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Ranks that share the sequence
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(crate) ranks: usize,
    /// How they share it
    #[arg(long, default_value = "striped", value_parser = strategy)]
    pub(crate) strategy: Strategy,
    /// Write config.json, weights and tokens here, and measure nothing
    #[arg(long, value_name = "FOLDER")]
    #[arg(conflicts_with_all = ["serve", "against", "transformers", "at_least"])]
    pub(crate) export: Option<PathBuf>,
    /// Measure in turn with transformers, which gets the same weights and tokens; losses must agree
    #[arg(long = "against-transformers", conflicts_with_all = ["serve", "against"])]
    pub(crate) transformers: bool,
    /// The Python that has transformers [default: what `cargo xtask setup python` installs]
    #[arg(long, value_name = "PATH", requires = "transformers")]
    pub(crate) python: Option<PathBuf>,
    /// Instead find the longest sequence that fits, to a multiple of TOKENS positions: from `--tokens` on, a program a trial
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    #[arg(conflicts_with_all = ["serve", "against", "transformers", "export", "at_least"])]
    pub(crate) longest: Option<usize>,
    /// Peaks in TFLOP/s whose shares the model's FLOP/s are given as; several with commas
    #[arg(long, value_name = "TFLOPS", value_delimiter = ',')]
    pub(crate) peak: Vec<f64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `ring`
#[derive(Args, Clone, Debug)]
pub(crate) struct Ring {
    /// The part that is split
    #[arg(long, default_value = "attention")]
    pub(crate) part: Part,
    #[command(flatten)]
    pub(crate) model: Model,
    /// Positions of the whole sequence
    #[arg(long, default_value = "16k", value_parser = count)]
    pub(crate) tokens: usize,
    /// Ranks that share it
    #[arg(long, default_value_t = 4, value_parser = positive)]
    pub(crate) ranks: usize,
    /// How they share it
    #[arg(long, default_value = "striped", value_parser = strategy)]
    pub(crate) strategy: Strategy,
    /// The other side of the comparison: a strategy on as many ranks, or `local`, one rank [default: `ring` for attention, `local` for the step]
    #[arg(long, value_name = "STRATEGY", value_parser = strategy, conflicts_with = "against")]
    pub(crate) than: Option<Strategy>,
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Which direction of attention is timed
    #[arg(long, default_value = "both")]
    pub(crate) pass: Pass,
    /// Activation checkpointing of the step: `none` or `layer`
    #[arg(long, default_value = "none", value_parser = recompute)]
    pub(crate) recompute: Recompute,
    /// Threads, over all ranks
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Attention: ranks keep to their own threads, as devices do; else those that wait help the others
    #[arg(long)]
    pub(crate) apart: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A part that is split over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Attention alone on the CPU; heads, mask, pass and type matter
    Attention,
    /// The training step of `step`, where model and device matter
    Step,
}

/// `memory`
#[derive(Args, Clone, Debug)]
pub(crate) struct Memory {
    /// Positions per rank
    #[arg(long, default_value = "4k", value_parser = count)]
    pub(crate) tokens: usize,
    /// Numbers of ranks; several with commas
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_parser = positive)]
    pub(crate) ranks: Vec<usize>,
    /// Layers of the small model [default: 4]
    #[arg(long, value_parser = positive)]
    pub(crate) layers: Option<usize>,
    /// How they share the sequence
    #[arg(long, default_value = "striped", value_parser = strategy)]
    pub(crate) strategy: Strategy,
    /// Activation checkpointing: `none` or `layer`
    #[arg(long, default_value = "layer", value_parser = recompute)]
    pub(crate) recompute: Recompute,
    /// Steps; the last is measured
    #[arg(long, default_value_t = 2, value_parser = positive)]
    pub(crate) steps: usize,
    /// Exit with 10 where a process has more or less in memory than planned, by more than this share of it
    #[arg(long, value_name = "SHARE")]
    pub(crate) resident: Option<f64>,
    /// Threads of this process, over all its ranks
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Exit with 10 where activations and keys and values in flight of a rank, from two ranks on, differ by more than this share
    #[arg(long, value_name = "SHARE")]
    pub(crate) flat: Option<f64>,
    /// Exit with 10 where a class is further from the plan than this share of it
    #[arg(long, value_name = "SHARE")]
    pub(crate) planned: Option<f64>,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
}

/// `million`
#[derive(Args, Clone, Debug)]
pub(crate) struct Million {
    /// The text
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Positions
    #[arg(long, default_value = "1M", value_parser = count)]
    pub(crate) tokens: usize,
    /// Ranks [default: the experiment's]
    #[arg(long, value_parser = positive)]
    pub(crate) ranks: Option<usize>,
    /// Threads, over all ranks
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
}

/// `saves`
#[derive(Args, Clone, Debug)]
pub(crate) struct Saves {
    /// Positions
    #[arg(long, default_value = "16k", value_parser = count)]
    pub(crate) tokens: usize,
    /// Runs of each kind, in turn
    #[arg(long, default_value_t = 3, value_parser = positive)]
    pub(crate) rounds: usize,
    /// Threads
    #[arg(long, default_value_t = annulus_machine::cores(), value_parser = positive)]
    pub(crate) threads: usize,
    /// Tensor-parallel ranks, which write a share of a checkpoint each
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub(crate) tensor: usize,
    /// Exit with 10 where a step takes more than this, of one without
    #[arg(long, value_name = "RATIO")]
    pub(crate) at_most: Option<f64>,
}

/// `gpu`
#[derive(Args, Clone, Debug)]
pub(crate) struct Gpu {
    /// Positions of a sequence; several with commas
    #[arg(long, default_value = "1k,2k,4k,8k,16k,32k", value_delimiter = ',', value_parser = count)]
    pub(crate) tokens: Vec<usize>,
    /// Elements per head; several with commas
    #[arg(long, default_value = "64,128", value_delimiter = ',', value_parser = positive)]
    pub(crate) head_dim: Vec<usize>,
    /// Passes; several with commas. `same-bits` is backward with the same bits every time
    #[arg(long, default_value = "forward,backward,same-bits", value_delimiter = ',', value_parser = crate::gpu::names())]
    pub(crate) passes: Vec<String>,
    /// Without the tiles of a ring's hops
    #[arg(long)]
    pub(crate) no_hops: bool,
    /// Which GPU
    #[arg(long, default_value_t = 0)]
    pub(crate) device: usize,
    /// Samples of every point
    #[arg(long, default_value_t = 9, value_parser = positive)]
    pub(crate) samples: usize,
    /// Lines of another program that measured the same points, to be printed beside
    #[arg(long, value_name = "FILE")]
    pub(crate) beside: Option<PathBuf>,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
}

/// `all`
#[derive(Args, Clone, Debug)]
pub(crate) struct All {
    /// The folder of the peers' scripts: `bench_sdpa.py`, `bench_train.py` and the others
    #[arg(long, value_name = "FOLDER")]
    pub(crate) peers: PathBuf,
    /// The Python that runs them
    #[arg(long, value_name = "PATH")]
    pub(crate) python: PathBuf,
    /// Only comparisons whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) only: String,
    /// Print names and commands, and run nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Pairs of every comparison
    #[arg(long, default_value_t = 15, value_parser = positive)]
    pub(crate) pairs: usize,
    /// Append the results to `experiments/results/NAME.jsonl`
    #[arg(long, value_name = "NAME")]
    pub(crate) record: Option<String>,
}

/// The type of an attention's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    F32,
    Bf16,
}

impl Dtype {
    /// As Candle calls it.
    pub(crate) fn candle(self) -> DType {
        match self {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::BF16,
        }
    }
}

/// Which direction of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pass {
    Forward,
    Backward,
    Both,
}

impl Pass {
    /// Operations in units of a forward pass, as papers count them.
    pub(crate) fn operations(self) -> f64 {
        match self {
            Pass::Forward => 1.0,
            Pass::Backward => 2.5,
            Pass::Both => 3.5,
        }
    }
}

/// The word that `value` is on the command line.
pub(crate) fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
impl Command {
    /// The command that `words` mean.
    pub(crate) fn of(words: &[&str]) -> Command {
        let words = ["bench"].iter().chain(words);
        Arguments::try_parse_from(words).expect("words of the command line").command
    }
}
