//! The experiment as it is written: every field is one key of the file, every default is here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use annulus_machine::Core;
use annulus_sequence::Layout;

use crate::{Attention, Data, Evaluation, Extension, Lora, Places, Shape, Stage, Staged};

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

pub(crate) use words;

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
    /// `extend:`; none: the model as it is.
    pub extend: Option<Extension>,
    /// `lora:`; none: everything is trained.
    pub lora: Option<Lora>,
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
    /// `stages:` in order; empty: the file is the only one. Beside them `data.tokens` and `schedule.steps` are those of the longest,
    /// and of all.
    pub stages: Vec<Stage>,
    /// No key: which of several stages it is; none: it is no stage.
    pub staged: Option<Box<Staged>>,
    /// `every: {log, evaluate, checkpoint}` in steps.
    pub every: Every,
    /// `evaluation:`
    pub evaluation: Evaluation,
    /// `trace: {steps}`
    pub trace: Traced,
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

impl Experiment {
    /// How positions are dealt to the ranks of a sequence.
    pub fn layout(&self) -> Layout {
        self.attention.layout(self.data.tokens, self.mesh.sequence)
    }
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
    /// `path:` a Hugging Face folder or a model of the hub, and `weights: pretrained | random` (default pretrained).
    Folder {
        /// The folder. Of a model of the hub, `hf://…` until it is there.
        path: PathBuf,
        /// `hf://owner/name@revision`, of a model of the hub.
        hub: Option<String>,
        /// Whether its weights are read.
        weights: WeightsFrom,
    },
    /// config.json's own keys inline; weights are random.
    Inline(Box<Shape>),
}

impl ModelSource {
    /// Whether a path names a model of the hub.
    pub fn is_of_hub(path: &str) -> bool {
        path.starts_with("hf://")
    }
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
    /// The file of the [`crate::Cluster`] that `strategy: auto` chooses for, and whose cores plans are made for; default: the
    /// threads of this machine.
    pub cluster: Option<PathBuf>,
}

/// `memory:`
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// `auto | none | layer`; default auto. A [`crate::Plan`] has settled it: never auto.
    pub recompute: Recompute,
    /// Bytes that all ranks may hold together; default: three quarters of what there is.
    pub budget: Option<u64>,
    /// No key: bytes of the device that computes, where it has a memory of its own.
    pub device: Option<u64>,
    /// No key here, but in a cluster's file: what a core computes with; default: as this machine's does.
    pub core: Core,
    /// Likewise: cores of a rank that a plan counts workers for; default: 1.
    pub workers: usize,
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

/// `trace:`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// Steps (from 1) of which every rank records what it does when; default none.
    pub steps: Vec<Range<usize>>,
}

impl Traced {
    /// Whether `step` is one of them.
    pub fn contains(&self, step: u64) -> bool {
        self.steps.iter().any(|steps| steps.contains(&(step as usize)))
    }
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
