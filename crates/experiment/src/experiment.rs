//! The experiment as it is written: every field is one key of the file, every default is here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use annulus_sequence::Strategy;

use crate::{Places, Shape};

/// The words of an enum, as one writes them in the file.
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// The words one can write.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word one writes.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }

            /// What a word means.
            pub fn from_word(word: &str) -> Option<$name> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

/// One experiment: one file, one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// What the run is called. Required.
    pub name: String,
    /// Everything random is a function of it. Default 0.
    pub seed: u64,
    /// `device: auto | cpu | cuda | cuda:N`; default auto.
    pub device: Device,
    /// `model:`
    pub model: Model,
    /// `data:`
    pub data: Data,
    /// `mesh:`
    pub mesh: Mesh,
    /// `attention:`
    pub attention: Attention,
    /// `memory:`
    pub memory: Memory,
    /// `optimizer:`
    pub optimizer: Optimizer,
    /// `schedule:`
    pub schedule: Schedule,
    /// `every: {log, evaluate, checkpoint}` in steps.
    pub every: Every,
    /// Checkpoints kept; default 2.
    pub keep: usize,
    /// The run's folder; default `runs/NAME`.
    pub output: PathBuf,
    /// `expect: {TAG: {min, max, of_first}}`: what `train --check` asserts of the last value of a
    /// tag.
    pub expect: BTreeMap<String, Bound>,
    /// Where the keys were written; `Places::default()` in an experiment that no file describes.
    pub places: Places,
}

/// `device:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The first GPU if there is one that this program can use, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number, from 0.
    Cuda(usize),
}

impl Device {
    /// The word one writes.
    pub fn word(self) -> String {
        match self {
            Device::Auto => "auto".to_owned(),
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(index) => format!("cuda:{index}"),
        }
    }

    /// What a word means.
    pub fn from_word(word: &str) -> Option<Device> {
        match word {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(0)),
            _ => {
                let index = word.strip_prefix("cuda:")?;
                let plain = index.len() <= 3 && index.bytes().all(|digit| digit.is_ascii_digit());
                index.parse().ok().filter(|_| plain).map(Device::Cuda)
            }
        }
    }
}

/// `model:`
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// A folder, or the shape inline.
    pub source: ModelSource,
    /// `dtype: f32 | bf16`; default f32.
    pub dtype: Dtype,
    /// Replaces the base of the rotary frequencies.
    pub rope_theta: Option<f64>,
}

/// Where the shape and the weights come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// `path:` a Hugging Face folder, and `weights: pretrained | random` (default pretrained).
    Folder {
        /// The folder.
        path: PathBuf,
        /// Whether its weights are read.
        weights: WeightsFrom,
    },
    /// config.json's own keys inline; weights are random.
    Inline(Shape),
}

/// `weights:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsFrom {
    /// Read from the folder.
    Pretrained,
    /// Fresh.
    Random,
}

words!(WeightsFrom { Pretrained = "pretrained", Random = "random" });

/// `dtype:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 16 bits, f32 masters.
    Bf16,
}

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
}

words!(Dtype { F32 = "f32", Bf16 = "bf16" });

/// `data:`
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// A file or folder; none: the recall task if `format: recall`, else the project's own
    /// documents.
    pub path: Option<PathBuf>,
    /// `text | jsonl | batches | recall`; default text.
    pub format: Format,
    /// `bytes` or a tokenizer.json; default `bytes`.
    pub tokenizer: String,
    /// Inputs per sequence. Required.
    pub tokens: usize,
    /// Sequences per optimizer step, whatever the ranks; default 1.
    pub batch: usize,
    /// Sequences held out at the end of the data, and evaluated; default 8, 0 for
    /// `format: batches` (0: none).
    pub evaluate: usize,
}

/// `format:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain text.
    Text,
    /// A line, a JSON object with `text`.
    Jsonl,
    /// A safetensors file of ready-made batches.
    Batches,
    /// The synthetic recall task.
    Recall,
}

words!(Format { Text = "text", Jsonl = "jsonl", Batches = "batches", Recall = "recall" });

/// `mesh:`
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    /// Replicas; default 1.
    pub data: usize,
    /// Ranks that share a sequence; default 1.
    pub sequence: usize,
    /// What they hold of it, in proportion: one for each; none: all alike.
    pub weights: Option<Vec<usize>>,
    /// How long a rank waits for one that shows no progress; `60` or `60s`; default 60 s.
    pub deadline: Duration,
    /// The file of the [`crate::Cluster`] that `strategy: auto` chooses for; default: the threads of
    /// this machine.
    pub cluster: Option<PathBuf>,
}

/// `attention:`
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `auto | local | ring | striped | megatron | all-gather`; default `local` on one rank; required
    /// on more.
    pub strategy: Strategy,
    /// `auto` was written: `strategy` is open. A [`crate::Plan`] has chosen it: never true there.
    pub automatic: bool,
    /// `p2p`, which `ring`, `striped` and `megatron` do anyhow; more later.
    pub exchange: Option<Exchange>,
    /// Neighbouring positions of a stripe; default 1.
    pub stripe: Option<usize>,
    /// `full | causal`; default causal.
    pub mask: MaskKind,
    /// First keys of a document that all its queries see.
    pub prefix: Option<usize>,
    /// The documents packed into a sequence.
    pub documents: Option<Packed>,
    /// Keys from here on are padding.
    pub padding: Option<usize>,
    /// Keys a query sees, itself included.
    pub window: Option<usize>,
    /// `strided | fixed`.
    pub pattern: Option<Pattern>,
    /// The pattern's distance.
    pub stride: Option<usize>,
    /// What a block of a fixed pattern shows everybody; default 1.
    pub columns: Option<usize>,
    /// First keys of a document that no window and no pattern hides.
    pub sinks: Option<usize>,
    /// Positions that see all and that all see.
    pub global: Option<Vec<Range<usize>>>,
    /// `fused | reference`; default fused.
    pub kernel: Kernel,
    /// Whether backward gives the same bits every time on a GPU too, at the price of a second pass; default true.
    pub deterministic: bool,
}

/// `exchange:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// From rank to rank.
    PointToPoint,
}

words!(Exchange { PointToPoint = "p2p" });

/// `mask:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// Every key.
    Full,
    /// Keys at or before the query.
    Causal,
}

words!(MaskKind { Full = "full", Causal = "causal" });

/// `pattern:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Keys nearer than the stride, and those a multiple of it away.
    Strided,
    /// Keys of the query's block, and the last ones of every block.
    Fixed,
}

words!(Pattern { Strided = "strided", Fixed = "fixed" });

/// `documents:`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packed {
    /// The same in every sequence: their lengths.
    Lengths(Vec<usize>),
    /// `data`: where the data's documents end.
    ByData,
}

/// `kernel:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Blockwise, fast.
    Fused,
    /// Plain loops, f64.
    Reference,
}

words!(Kernel { Fused = "fused", Reference = "reference" });

/// `memory:`
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// `auto | none | layer`; default auto. A [`crate::Plan`] has settled it: never auto.
    pub recompute: Recompute,
    /// Bytes that all ranks may hold together; default: three quarters of what there is.
    pub budget: Option<u64>,
    /// No key: bytes of the device that computes, where it has a memory of its own.
    pub device: Option<u64>,
    /// Sequences per rank at once; default: all of a replica's.
    pub micro_batch: Option<usize>,
    /// Tokens of logits held at once; default: what the plan chooses.
    pub loss_chunk: Option<usize>,
    /// Tokens of the feed-forward held at once; default: what the plan chooses.
    pub mlp_chunk: Option<usize>,
}

/// `recompute:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// The plan chooses: nothing is recomputed where everything fits into the budget.
    Auto,
    /// Everything is kept.
    None,
    /// A layer keeps its input and attention's output.
    Layer,
}

words!(Recompute { Auto = "auto", None = "none", Layer = "layer" });

/// `optimizer:` (`name: adamw`)
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The peak. Required.
    pub learning_rate: f64,
    /// Default [0.9, 0.95].
    pub betas: (f64, f64),
    /// Default 1e-8.
    pub epsilon: f64,
    /// On two-dimensional parameters; default 0.1.
    pub weight_decay: f64,
    /// Of the global norm; default 1.0; 0: never.
    pub clip: f64,
}

/// `schedule:`
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Optimizer steps. Required.
    pub steps: u64,
    /// Ends the run after so many, without touching the schedule.
    pub stop: Option<u64>,
    /// Steps of linear warm-up; default 0.
    pub warmup: u64,
    /// `constant | linear | cosine | wsd`; default constant.
    pub decay: Decay,
    /// What remains of the peak at the end; default 0.1.
    pub floor: f64,
}

/// `decay:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// None.
    Constant,
    /// A line to the floor.
    Linear,
    /// Half a cosine to the floor.
    Cosine,
    /// Constant, then a line to the floor over the last fifth.
    Wsd,
}

words!(Decay { Constant = "constant", Linear = "linear", Cosine = "cosine", Wsd = "wsd" });

/// `every:` in steps; 0: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    /// Default 1.
    pub log: u64,
    /// Default 0: only at the end.
    pub evaluate: u64,
    /// Default 0: only at the end.
    pub checkpoint: u64,
}

/// What is asserted of the last value of a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// At least.
    pub min: Option<f64>,
    /// At most.
    pub max: Option<f64>,
    /// At most this share of its first value.
    pub of_first: Option<f64>,
}
