//! The experiment file and config.json as types; every cross-check; the plan it means. Needs no
//! tensors: a laptop can check an experiment for a cluster.

mod attention;
mod back;
mod build;
mod choice;
mod cluster;
mod config;
mod cost;
mod data;
mod evaluation;
mod experiment;
mod extend;
mod extract;
mod later;
mod load;
mod lora;
mod mask;
mod misfit;
mod passes;
mod plan;
mod problem;
mod proving;
mod quantity;
mod rank;
mod report;
mod rope;
mod rules;
mod schema;
mod shape;
mod sliding;
mod source;
mod split;
mod stages;
mod support;
mod table;
mod tree;
mod typed;
mod values;
mod wire;
mod written;

pub use attention::{
    Attention, Dealt, Kernel, MaskKind, Packed, Pattern, Sliding, return_from_word, return_word,
};
pub use back::Back;
pub use choice::Settled;
pub use cluster::{
    Candidate, Cell, Choice, Cluster, Comparison, Estimate, Grid, Hiding, Link, Load, Message,
    Method, Overlap, Rates, Shared, Step, Table, Walk, Way, Weighing, label, minimal_block, walk,
};
pub use config::{parse_config, read_config, write_config};
pub use data::{Data, Format, Longer, Pack};
pub use evaluation::{Asked, Evaluation};
pub use experiment::{
    Bound, Decay, Device, Dtype, Every, Experiment, Memory, Mesh, Model, ModelSource, Optimizer,
    Recompute, Schedule, Traced, WeightsFrom,
};
pub use extend::{Extension, Stretch};
pub use load::{Override, load, parse, read as read_experiment};
pub use lora::{Besides, Lora, Target, read_adapter, write_adapter};
pub use misfit::Misfit;
pub use plan::Plan;
pub use problem::{Problem, Problems};
pub use proving::{Proved, Proving};
pub use quantity::{bandwidth, binary_bandwidth};
pub use rank::{Peak, RankPlan};
pub use report::size;
pub use rope::{Frequencies, Parameters, Rope, Scaling, Yarn};
pub use schema::schema;
pub use shape::{Family, LayerType, Shape};
pub use sliding::LayerKind;
pub use source::Places;
pub use split::{Contradiction, Wording};
pub use stages::{Part, Reset, Stage, Staged};
pub use support::support;
pub use typed::tokens;
pub use wire::Element;
pub use written::differences;
