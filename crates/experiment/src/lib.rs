//! The experiment file as types, with every rule between its keys, and its meaning once its model has been read.

mod attention;
mod choice;
mod data;
mod device;
mod differences;
mod evaluation;
mod expect;
mod experiment;
mod extend;
mod free;
mod host;
mod lora;
mod mask;
mod mesh;
mod model;
mod prompt;
mod replaced;
mod reproducible;
mod resolved;
mod rules;
mod schedule;
mod sliding;
mod split;
mod stages;
mod steps;
mod sweep;
mod sweep_names;
pub mod tags;
mod unused;
mod wire;
mod written;

pub use annulus_architecture::{
    ADAPTED, Dtype, Element, Family, Frequencies, FullyTrained, LayerType, Lora, Parameters, Rope,
    Scaling, Shape, Target, Yarn, generation_ends, has_saved_config, parse_config, read_adapter,
    read_config, read_saved_config, write_adapter, write_config,
};
pub use annulus_yaml::{
    Override, Places, Problem, Problems, Unit, bandwidth, binary_bandwidth, conversion, elsewhere,
    nearest, quoted, quoted_path,
};
pub use attention::{
    Attention, AttentionKeys, Kernel, LayoutKeys, Sliding, route_from_word, route_word,
};
pub use choice::Settled;
pub use data::{BYTES, Data, DataKeys, Format, Longer, MOST_TOKENS, Pack, TextSource, ending};
pub use device::{Device, NAME};
pub use differences::{KeyDifference, differences, value_text};
pub use evaluation::{Evaluation, EvaluationTask, EvaluationWindows};
pub use experiment::Experiment;
pub use extend::{Extension, RopeMethod};
pub use free::{is_neutral, what_may_differ};
pub use host::{ClusterDevices, Host, OffloadSpace};
pub use lora::LoraKeys;
pub use mask::{DocumentBounds, MaskKind, Masking, Pattern, mask_of};
pub use mesh::{
    Engine, Memory, Mesh, Offload, OffloadPlace, Order, Parallel, Recompute, Replica, State,
    StateAxes,
};
pub use model::{Model, ModelKeys, ModelSource, WeightsFrom};
pub use replaced::replacing;
pub use reproducible::Reproducible;
pub use resolved::Resolved;
pub use rules::{MOST_RANKS, STORES_SCORES};
pub use schedule::{Curve, Decay, Schedule, ScheduleKeys};
pub use sliding::{SECTION as SLIDING, numbers};
pub use split::{Contradiction, StrategyAsWritten};
pub use stages::{CurrentPhase, Phase, PhaseKeys, PhaseStart, Reset};
pub use steps::{Algorithm, Bound, Every, Optimizer, Sample, Trace};
pub use sweep::{AtOnce, Sweep, SweepKeys, SweptRun, parse_sweep};
pub use sweep_names::short_keys;
pub use wire::wire_key;
pub use written::{
    Varying, Written, explain, explain_value, load, page, parse, read_experiment, schema, varying,
};
