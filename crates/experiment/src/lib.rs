//! The experiment file and config.json as types; every cross-check; the plan it means. Needs no
//! tensors: a laptop can check an experiment for a cluster.

mod attention;
mod choice;
mod cluster;
mod cost;
mod data;
mod device;
mod evaluation;
mod experiment;
mod extend;
mod lora;
mod mask;
mod mesh;
mod misfit;
mod model;
mod passes;
mod plan;
mod proving;
mod rank;
mod report;
mod resolved;
mod route;
mod rules;
mod schedule;
mod sliding;
mod split;
mod stages;
mod steps;
mod support;
mod wire;
mod written;

pub use annulus_architecture::{
    Besides, Dtype, Element, Family, Frequencies, LayerType, Lora, Parameters, Rope, Scaling,
    Shape, Target, Yarn, parse_config, read_adapter, read_config, write_adapter, write_config,
};
pub use annulus_yaml::{Override, Places, Problem, Problems, bandwidth, binary_bandwidth, tokens};
pub use attention::{
    Attention, AttentionKeys, Dealt, Kernel, Sliding, return_from_word, route_word,
};
pub use choice::Settled;
pub use cluster::{
    Candidate, Cell, Choice, Cluster, Comparison, Estimate, Grid, Hiding, Level, Link, Load,
    Message, Method, Overlap, Rates, Row, Scale, Shared, Step, Table, Walk, Way, Weighing, label,
    minimal_block, walk,
};
pub use data::{Data, DataKeys, Format, Longer, Pack};
pub use device::Device;
pub use evaluation::{Asked, Evaluation};
pub use experiment::Experiment;
pub use extend::{Extension, Stretch};
pub use lora::LoraKeys;
pub use mask::{MaskKind, Masking, Packed, Pattern};
pub use mesh::{Host, Memory, Mesh, Recompute};
pub use misfit::Misfit;
pub use model::{Model, ModelKeys, ModelSource, WeightsFrom};
pub use plan::Plan;
pub use proving::{Proved, Proving};
pub use rank::{Peak, RankPlan};
pub use report::size;
pub use resolved::Resolved;
pub use route::RouteChoice;
pub use schedule::{Curve, Decay, Schedule, ScheduleKeys};
pub use sliding::LayerKind;
pub use split::{Contradiction, Wording};
pub use stages::{Part, Reset, Stage, StageKeys, Staged};
pub use steps::{Algorithm, Bound, Every, Optimizer, Trace};
pub use support::support;
pub use written::{Written, differences, load, page, parse, read_experiment, schema};
