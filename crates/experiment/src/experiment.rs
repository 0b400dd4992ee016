//! The meaning of an experiment's file, as one type.

use std::collections::BTreeMap;
use std::path::PathBuf;

use annulus_architecture::Lora;
use annulus_machine::blocks::strict_block;
use annulus_sequence::Layout;
use annulus_yaml::Places;

use crate::{
    Attention, Bound, CurrentPhase, Data, Device, Evaluation, Every, Extension, Host, Memory, Mesh,
    Model, OffloadPlace, Optimizer, Parallel, Phase, Reproducible, Sample, Schedule, Trace,
};

/// An experiment: one file, one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The name of the run. Required.
    pub name: String,
    /// The seed of everything random. Default 0.
    pub seed: u64,
    /// The key `reproducible: layout | strict`; default layout.
    pub reproducible: Reproducible,
    /// The key `device: auto | cpu | cuda | cuda:N | cuda:N-M`; default auto.
    pub device: Device,
    /// The section `model`.
    pub model: Model,
    /// The section `extend`; `None`: the model as it is.
    pub extend: Option<Extension>,
    /// The section `lora`; `None`: every parameter is trained.
    pub lora: Option<Lora>,
    /// The section `data`.
    pub data: Data,
    /// The section `mesh`.
    pub mesh: Mesh,
    /// The section `attention`.
    pub attention: Attention,
    /// The section `parallel`.
    pub parallel: Parallel,
    /// The section `memory`.
    pub memory: Memory,
    /// What a plan is made for: detected or described, not a key.
    pub host: Host,
    /// The section `optimizer`.
    pub optimizer: Optimizer,
    /// The section `schedule`.
    pub schedule: Schedule,
    /// The section `stages`: training phases, in order; empty: a single phase. With phases, `data.tokens` is that of the longest, and
    /// `schedule.steps` the sum of all.
    pub stages: Vec<Phase>,
    /// Which phase of a run with several this experiment is, not a key; `None`: it is no phase of another.
    pub phase_of: Option<Box<CurrentPhase>>,
    /// The section `every: {log, evaluate, checkpoint}`, in steps.
    pub every: Every,
    /// The section `evaluation`.
    pub evaluation: Evaluation,
    /// The section `trace: {steps}`.
    pub trace: Trace,
    /// The section `sample: {prompt, tokens}`; `None`: no text is generated.
    pub sample: Option<Sample>,
    /// The number of checkpoints that are kept; default 2.
    pub keep: usize,
    /// Whether the checkpoint with the lowest validation loss is kept, too; default no.
    pub keep_best: bool,
    /// Whether checkpoints are written while training goes on; default no.
    pub background_saves: bool,
    /// The run's folder; default `runs/NAME`.
    pub output: PathBuf,
    /// The section `expect: {TAG: {min, max, of_first}}`: what `train --check` asserts of a tag's last value.
    pub expect: BTreeMap<String, Bound>,
    /// Where keys were written, for messages; `Places::default()` for an experiment without a file.
    pub places: Places,
}

impl Experiment {
    /// Where activations and moments are offloaded to.
    pub fn offload_place(&self) -> OffloadPlace {
        let written = self.memory.offload_folder.clone();
        let is_written = written.is_some();
        OffloadPlace { folder: written.unwrap_or_else(|| self.output.join("offload")), is_written }
    }

    /// Whether the experiment says that ranks compute on GPUs: on those of a described cluster, or on this machine's where none is described.
    pub fn is_for_gpus(&self) -> bool {
        let is_here = self.host.cluster.is_none();
        is_here && matches!(self.device, Device::Cuda(_)) || self.host.computes_on_gpus()
    }

    /// The size of a strict block, over which sums are order-free; `None`: sums are f32, in an order that depends on the ranks. A sequence
    /// length without such a block is refused.
    pub fn block(&self) -> Option<usize> {
        match self.reproducible {
            Reproducible::Layout => None,
            Reproducible::Strict => strict_block(self.data.tokens),
        }
    }

    /// How positions are sharded over the ranks of a sequence.
    pub fn layout(&self) -> Layout {
        self.attention.layout(self.data.tokens, self.mesh.sequence)
    }
}
