//! What an experiment's file means.

use std::collections::BTreeMap;
use std::path::PathBuf;

use annulus_architecture::Lora;
use annulus_machine::blocks::strict_block;
use annulus_sequence::Layout;
use annulus_yaml::Places;

use crate::{
    Attention, Bound, CurrentPhase, Data, Device, Evaluation, Every, Extension, Host, Memory, Mesh,
    Model, Optimizer, Parallel, Phase, Reproducible, Sample, Schedule, Trace,
};

/// One experiment: one file, one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// What the run is called. Required.
    pub name: String,
    /// Everything random is a function of it. Default 0.
    pub seed: u64,
    /// `reproducible: layout | strict`; default layout.
    pub reproducible: Reproducible,
    /// `device: auto | cpu | cuda | cuda:N | cuda:N-M`; default auto.
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
    /// `parallel:`
    pub parallel: Parallel,
    /// `memory:`
    pub memory: Memory,
    /// No key: what a plan is made for.
    pub host: Host,
    /// `optimizer:`
    pub optimizer: Optimizer,
    /// `schedule:`
    pub schedule: Schedule,
    /// `stages:` in order; empty: the file is the only one. Beside them `data.tokens` and `schedule.steps` are those of the longest,
    /// and of all.
    pub stages: Vec<Phase>,
    /// No key: which of several stages it is; none: it is no stage.
    pub phase_of: Option<Box<CurrentPhase>>,
    /// `every: {log, evaluate, checkpoint}` in steps.
    pub every: Every,
    /// `evaluation:`
    pub evaluation: Evaluation,
    /// `trace: {steps}`
    pub trace: Trace,
    /// `sample: {prompt, tokens}`; none: nothing is written.
    pub sample: Option<Sample>,
    /// Checkpoints kept; default 2.
    pub keep: usize,
    /// Whether they are written while training goes on; default no.
    pub background_saves: bool,
    /// The run's folder; default `runs/NAME`.
    pub output: PathBuf,
    /// `expect: {TAG: {min, max, of_first}}`: what `train --check` asserts of the last value of a
    /// tag.
    pub expect: BTreeMap<String, Bound>,
    /// Where the keys were written; `Places::default()` in an experiment that no file describes.
    pub places: Places,
}

impl Experiment {
    /// The folder of what is offloaded.
    pub fn offload_folder(&self) -> PathBuf {
        let written = self.memory.offload_folder.clone();
        written.unwrap_or_else(|| self.output.join("offload"))
    }

    /// The block of neighbouring tokens over which sums are order-free; none: sums are f32, in an order that ranks reach. Of a sequence
    /// that there is none for, its length is refused.
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
