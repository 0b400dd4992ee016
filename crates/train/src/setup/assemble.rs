//! From the names in an experiment to objects: the one place that matches on names.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use annulus_attention::Attention;
use annulus_comm::{Axis, Communicator, Grid, RankHosts, World};
use annulus_experiment::{
    DocumentBounds, Dtype, Engine, Frequencies, Kernel, Offload, OffloadPlace, Order, Parallel,
    Recompute, Shape,
};
use annulus_machine::Core;
use annulus_machine::peak::Unit;
use annulus_model::{Attentions, Config, element_type};
use annulus_ops::attention::{AttentionKernel, Fused, Reference};
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Generation, Processor};
use annulus_ops::{Backend, Cores};
use annulus_plan::{LayerGroup, Plan, heads_of};
use annulus_sequence::{
    Heads, Mask, Pass, Positions, Route, Rule, ScheduleError, Schedules, Setting, Strategy, Wire,
};
use candle_core::DType;

use crate::setup::device;
use crate::setup::processors::Processors;
use crate::setup::shared::{cores_here, unreached};
use crate::{Result, TrainError};

/// A layer group: layers with one mask, strategy and backward route, and their schedules.
#[derive(Clone, Debug)]
pub struct LayerGroupSchedules {
    /// The numbers of the group's layers.
    pub layers: Vec<usize>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// The strategy by which sequences are split.
    pub strategy: Strategy,
    /// The backward route of KV and gradients.
    pub route: Route,
    /// The proved schedules of all ranks: for this mask or, where sequences say which documents are in them, for any documents.
    pub schedules: Arc<Schedules>,
}

/// Everything that a computation depends on, except weights and data.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The model's configuration.
    pub config: Config,
    /// The model's layer groups.
    pub groups: Vec<LayerGroupSchedules>,
    /// The frequencies of RoPE, by which queries and keys are rotated.
    pub frequencies: Frequencies,
    /// Whether queries see only the keys of their own document, where sequences say which documents are in them.
    pub packed: bool,
    /// The attention kernel.
    pub kernel: Kernel,
    /// Whether the attention kernel gives the same bits every time, on a GPU too.
    pub deterministic: bool,
    /// The tokens of a block over which sums are order-free; `None`: sums are f32.
    pub block: Option<usize>,
    /// Whether the attention kernel must be able to drop weights.
    pub dropout: bool,
    /// The comm dtypes; `None`: values travel in the type that they are computed in, sums in f32.
    pub wire: Wire<Option<DType>>,
    /// Tokens of a sequence, as inputs.
    pub tokens: usize,
    /// The number of replicas (data parallel).
    pub data: usize,
    /// The number of ranks that share a sequence (context parallel).
    pub sequence: usize,
    /// The number of ranks that hold the same positions and split layers (tensor parallel).
    pub tensor: usize,
    /// The order of the mesh's axes: which ranks are neighbours.
    pub order: Order,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// Which state (weights, masters, moments) processes hold as shards.
    pub parallel: Parallel,
    /// What is kept for backward, and what is computed again.
    pub recompute: Recompute,
    /// How many tokens' logits are held at once.
    pub loss_chunk: usize,
    /// How many tokens of the feed-forward are held at once; `None`: all.
    pub mlp_chunk: Option<usize>,
    /// Which tensors are offloaded while they are not used.
    pub offload: Offload,
    /// Where they are offloaded to.
    pub offload_place: OffloadPlace,
    /// The deadline: how long a rank waits for one that shows no progress.
    pub deadline: Duration,
    /// The engine that carries tensors between processes.
    pub engine: Engine,
    /// Cores of this machine that the ranks of this process share.
    pub cores: Cores,
    /// The processes, which share the ranks evenly.
    pub processes: World,
    /// The vector instructions and caches that each core computes with.
    pub core: Core,
    /// The GPUs that run operators, if the CPU does not.
    pub processors: Processors,
}

impl LayerGroupSchedules {
    fn of((group, schedules): (&LayerGroup, &Arc<Schedules>)) -> LayerGroupSchedules {
        LayerGroupSchedules {
            layers: group.layers.clone(),
            mask: group.mask.clone(),
            strategy: group.strategy,
            route: group.route.how,
            schedules: schedules.clone(),
        }
    }

    /// Layer groups for layers and their masks, all split by one setting; positions are sharded for the first mask.
    ///
    /// # Errors
    /// Masks, strategy and ranks that do not go together.
    pub fn all(
        groups: impl IntoIterator<Item = (Vec<usize>, Mask)>,
        setting: &Setting,
        packed: bool,
    ) -> std::result::Result<Vec<LayerGroupSchedules>, ScheduleError> {
        let (layers, masks): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let scheduled = |mask: &Mask| if packed { mask.of_any_documents() } else { mask.clone() };
        let scheduled: Vec<Mask> = masks.iter().map(scheduled).collect();
        let schedules = setting.schedules_of(&scheduled)?.into_iter().map(Arc::new);
        let Setting { strategy, route, .. } = *setting;
        let of_group = |((layers, mask), schedules)| LayerGroupSchedules {
            layers,
            mask,
            strategy,
            route,
            schedules,
        };
        Ok(layers.into_iter().zip(masks).zip(schedules).map(of_group).collect())
    }
}

/// The configuration of the model that `plan` is about.
pub(crate) fn planned_config(plan: &Plan) -> Config {
    Config {
        shape: plan.shape.clone(),
        vocab_size: plan.vocabulary(),
        dtype: element_type(plan.experiment.model.dtype),
        lora: plan.experiment.lora.clone(),
    }
}

impl Setup {
    /// The most FLOP/s in the model's dtype of the `cores` of every host, or of all GPUs. All processes must call it.
    ///
    /// # Errors
    /// A process that is late or gone.
    pub(crate) fn peak(&self, cores: usize) -> Result<Option<f64>> {
        let is_narrow = self.config.dtype == DType::BF16;
        if !self.processors.is_empty() {
            return Ok(is_narrow.then(|| self.processors.tensor_peak(&self.processes)).flatten());
        }
        let unit = is_narrow.then(Unit::bf16).flatten().unwrap_or_else(Unit::f32);
        // Processes of one host share its cores: only if measured at the same time do their peaks add up to the host's.
        self.processes.gather(&[]).map_err(unreached)?;
        let own = unit.peak(cores_here(&self.processes, cores)) * 1e9;
        let all = self.processes.gather(&own.to_le_bytes()).map_err(unreached)?;
        let peaks = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
        Ok(Some(peaks.map(f64::from_le_bytes).sum()))
    }

    /// This setup with these positions as global ones besides, which sequences may reach later.
    #[must_use]
    pub fn with_global(mut self, positions: &[Range<usize>]) -> Setup {
        for group in &mut self.groups {
            group.mask = mem::take(&mut group.mask).and(Rule::Global(positions.to_vec()));
        }
        self
    }

    /// The setup of `plan` on a machine with `cores` cores.
    pub fn new(plan: &Plan, cores: impl Into<Cores>) -> Setup {
        let experiment = &plan.experiment;
        Setup {
            config: planned_config(plan),
            groups: plan.groups.iter().zip(&plan.schedules).map(LayerGroupSchedules::of).collect(),
            frequencies: plan.shape.frequencies(experiment.data.tokens),
            packed: experiment.attention.masking.documents == Some(DocumentBounds::ByData),
            kernel: experiment.attention.kernel,
            deterministic: experiment.attention.deterministic,
            block: experiment.block(),
            dropout: experiment.attention.dropout > 0.0,
            wire: experiment.attention.wire.map(|_, element| element.map(element_type)),
            tokens: experiment.data.tokens,
            data: experiment.mesh.data,
            sequence: experiment.mesh.sequence,
            tensor: experiment.mesh.tensor,
            order: experiment.mesh.order,
            micro_batch: plan.micro_batch,
            parallel: Parallel { state: plan.memory.state, ..experiment.parallel },
            recompute: plan.memory.recompute,
            loss_chunk: plan.memory.loss_chunk,
            mlp_chunk: Some(plan.memory.mlp_chunk).filter(|chunk| *chunk < plan.rows()),
            offload: experiment.memory.offload,
            offload_place: experiment.offload_place(),
            deadline: experiment.mesh.deadline,
            engine: experiment.mesh.engine,
            cores: cores.into(),
            processes: World::alone(),
            core: experiment.host.core,
            processors: Processors::default(),
        }
    }

    /// The setup of `plan` on the devices that the experiment names, as many of them as are planned.
    ///
    /// # Errors
    /// A GPU that is named but cannot be used.
    pub fn on_its_device(plan: &Plan, cores: usize) -> Result<Setup> {
        Setup::on_its_device_over(&World::alone(), plan, cores)
    }

    /// [`Setup::on_its_device`] over the processes of a world; of several, each has a GPU of its own, and those of a host share the `cores`
    /// of the machine.
    ///
    /// # Errors
    /// Those of [`Setup::on_its_device`], and fewer GPUs than processes on this host.
    pub fn on_its_device_over(world: &World, plan: &Plan, cores: usize) -> Result<Setup> {
        let processors = device::open_planned(&plan.experiment, world)?;
        Ok(Setup::new(plan, cores_here(world, cores)).on(processors).over(world))
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.grid().ranks()
    }

    /// Where the ranks run; the processes must be able to share them evenly.
    pub(crate) fn rank_hosts(&self) -> RankHosts {
        self.processes.rank_hosts(self.world())
    }

    /// The mesh's grid: which rank has which coordinates.
    pub(crate) fn grid(&self) -> Grid {
        let neighbours = match self.order {
            Order::SequenceFirst => Axis::Sequence,
            Order::DataFirst => Axis::Data,
        };
        let mut axes = vec![(Axis::Data, self.data), (Axis::Sequence, self.sequence)];
        if self.tensor > 1 {
            axes.push((Axis::Tensor, self.tensor));
        }
        Grid::new(&axes).neighbours_along(&[neighbours, Axis::Tensor])
    }

    /// This setup split in one way: all layers by `strategy`, in its own layout and over equally weighted ranks.
    ///
    /// # Errors
    /// A strategy that cannot split it so.
    pub fn split(
        &self,
        strategy: Strategy,
        ranks: usize,
        route: Route,
    ) -> std::result::Result<Setup, ScheduleError> {
        let setting = Setting::new(strategy, self.tokens, ranks, self.heads());
        let groups = self.groups.iter().map(|group| (group.layers.clone(), group.mask.clone()));
        let groups = LayerGroupSchedules::all(groups, &Setting { route, ..setting }, self.packed)?;
        // Shards need not be whole blocks then.
        Ok(Setup { groups, sequence: ranks, block: None, ..self.clone() })
    }

    /// The positions of each of the ranks that share a sequence.
    pub(crate) fn shards(&self) -> &[Positions] {
        &self.groups[0].schedules.of(Pass::Forward).positions
    }

    /// The attention heads of one rank.
    fn heads(&self) -> Heads {
        heads_of(&self.config.shape.part_of(self.tensor))
    }

    /// The attention of every layer on this rank.
    ///
    /// # Errors
    /// Layer groups whose positions are sharded in different ways.
    pub(crate) fn attention(
        &self,
        backend: &Backend,
        comm: Arc<dyn Communicator>,
    ) -> Result<Attentions> {
        let kernel = kernel(self.kernel, self.deterministic, self.dropout, backend);
        let scale = 1.0 / (self.config.shape.head_dim as f64).sqrt();
        let first = &self.groups[0];
        let first = Attention::new(first.schedules.clone(), scale, comm, kernel)
            .with_wire_dtypes(self.wire);
        let groups =
            self.groups.iter().map(|LayerGroupSchedules { layers, mask, schedules, .. }| {
                // Schedules for any documents show more than the mask of a single one.
                Ok((
                    first.with_schedules(schedules.clone())?.with_mask(mask.clone())?,
                    layers.clone(),
                ))
            });
        let groups = groups.collect::<Result<Vec<_>>>()?;
        Ok(Attentions::new(self.config.shape.num_hidden_layers, groups)?)
    }
}

/// The attention kernel of a name. Those of the CPU are always deterministic; of a GPU's, the fastest or, where weights are to be dropped,
/// the fastest that can.
pub(crate) fn kernel(
    name: Kernel,
    deterministic: bool,
    dropout: bool,
    backend: &Backend,
) -> Arc<dyn AttentionKernel> {
    match (name, backend) {
        (Kernel::Fused, Backend::Cpu(pool)) => Arc::new(Fused::new(pool.clone())),
        (Kernel::Reference, Backend::Cpu(_)) => Arc::new(Reference),
        (_, Backend::Gpu(processor)) => {
            Arc::new(gpu_kernels(name, deterministic, dropout, processor))
        }
    }
}

/// The attention kernels of a name on a GPU.
pub(crate) fn gpu_kernels(
    name: Kernel,
    deterministic: bool,
    dropout: bool,
    processor: &Arc<dyn Processor>,
) -> Kernels {
    let generation = match name {
        Kernel::Reference => Some(Generation::Reference),
        Kernel::Fused => dropout.then_some(Generation::Sm80),
    };
    Kernels { generation, ..Kernels::new(processor.clone(), deterministic) }
}

/// The configuration of a model of this shape and dtype.
///
/// # Errors
/// A shape without a known vocabulary.
pub fn model_config(shape: &Shape, dtype: Dtype) -> Result<Config> {
    let vocab_size = shape.vocab_size.ok_or_else(|| {
        TrainError::configuration(
            "the size of the vocabulary is not known",
            "set `model.vocab_size`, or `data.tokenizer`",
        )
    })?;
    Ok(Config { shape: shape.clone(), vocab_size, dtype: element_type(dtype), lora: None })
}
