//! From the words of an experiment to objects: the one place that matches on names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use annulus_attention::Attention;
use annulus_comm::threads::Options;
use annulus_comm::{Axis, Communicator, Grid, Mesh, Metered, Places, World};
use annulus_experiment::{
    Dtype, Engine, Frequencies, Kernel, Offload, Order, Packed, Parallel, Recompute, Shape,
};
use annulus_machine::Core;
use annulus_machine::peak::Unit;
use annulus_model::{Attentions, Config, Llama, TensorRanks, element_type};
use annulus_ops::attention::{AttentionKernel, Fused, Reference};
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Generation, Processor};
use annulus_ops::{Backend, Cores, Pool, Rotary};
use annulus_plan::{LayerGroup, Plan};
use annulus_sequence::{Heads, Mask, Route, ScheduleError, Schedules, Setting, Strategy, Wire};
use candle_core::DType;

use crate::run::given::here;
use crate::setup::device;
use crate::setup::pages::Room;
use crate::setup::processors::Processors;
use crate::setup::shared::{once, unreached};
use crate::step::division::Division;
use crate::step::rank::Rank;
use crate::{Result, TrainError, memory};

/// What attention is in some layers.
#[derive(Clone, Debug)]
pub struct Attending {
    /// Which layers.
    pub layers: Vec<usize>,
    /// Which key a query sees.
    pub mask: Mask,
    /// How the sequence is split.
    pub strategy: Strategy,
    /// The backward route.
    pub route: Route,
    /// What ranks do: under this mask, or, where sequences say which documents are in them, one that holds for any.
    pub schedules: Arc<Schedules>,
}

/// Everything but weights and data that a computation is a function of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The model.
    pub config: Config,
    /// What attention is in the layers of the model, those that share one together.
    pub groups: Vec<Attending>,
    /// What queries and keys are turned by.
    pub frequencies: Frequencies,
    /// Whether queries see the keys of their document alone, where sequences say which documents are in them.
    pub packed: bool,
    /// Which attention kernel.
    pub kernel: Kernel,
    /// Whether it gives the same bits every time on a GPU too.
    pub deterministic: bool,
    /// The block of tokens over which sums are order-free; none: they are f32.
    pub block: Option<usize>,
    /// Whether it can leave weights out.
    pub dropout: bool,
    /// The types of what travels between ranks; `None`: values as they are computed with, sums in f32.
    pub wire: Wire<Option<DType>>,
    /// Inputs per sequence.
    pub tokens: usize,
    /// Replicas.
    pub data: usize,
    /// Ranks that share a sequence.
    pub sequence: usize,
    /// Ranks that share positions, and layers.
    pub tensor: usize,
    /// Which ranks are neighbours.
    pub order: Order,
    /// Sequences per rank at once.
    pub micro_batch: usize,
    /// What processes hold of weights, masters and moments.
    pub parallel: Parallel,
    /// What is kept for backward.
    pub recompute: Recompute,
    /// Tokens of logits held at once.
    pub loss_chunk: usize,
    /// Tokens of the feed-forward held at once; `None`: all.
    pub mlp_chunk: Option<usize>,
    /// What waits elsewhere while it is not used, and in which folder.
    pub offload: Offload,
    /// The folder.
    pub offload_folder: PathBuf,
    /// How long a rank waits for one that shows no progress.
    pub deadline: Duration,
    /// What carries tensors between processes.
    pub engine: Engine,
    /// Cores of this machine that ranks of this process share.
    pub cores: Cores,
    /// The processes that share the ranks evenly.
    pub processes: World,
    /// What each of them computes with.
    pub core: Core,
    /// What runs operators, if it is not the CPU.
    pub processors: Processors,
}

impl Attending {
    fn of((group, schedules): (&LayerGroup, &Arc<Schedules>)) -> Attending {
        Attending {
            layers: group.layers.clone(),
            mask: group.mask.clone(),
            strategy: group.strategy,
            route: group.route.how,
            schedules: schedules.clone(),
        }
    }

    /// Layers and their masks, split alike; positions are sharded as the first mask has it.
    ///
    /// # Errors
    /// When they cannot be split so.
    pub fn all(
        groups: impl IntoIterator<Item = (Vec<usize>, Mask)>,
        setting: &Setting,
        packed: bool,
    ) -> std::result::Result<Vec<Attending>, ScheduleError> {
        let (layers, masks): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let scheduled = |mask: &Mask| if packed { mask.of_any_documents() } else { mask.clone() };
        let scheduled: Vec<Mask> = masks.iter().map(scheduled).collect();
        let schedules = setting.schedules_of(&scheduled)?.into_iter().map(Arc::new);
        let Setting { strategy, route, .. } = *setting;
        let attending =
            |((layers, mask), schedules)| Attending { layers, mask, strategy, route, schedules };
        Ok(layers.into_iter().zip(masks).zip(schedules).map(attending).collect())
    }
}

/// The model that `plan` is about.
pub(crate) fn planned_config(plan: &Plan) -> Config {
    Config {
        shape: plan.shape.clone(),
        vocab_size: plan.vocabulary(),
        dtype: element_type(plan.experiment.model.dtype),
        lora: plan.experiment.lora.clone(),
    }
}

impl Setup {
    /// What so many cores of every process, or all GPUs, could do at most with the model's type, FLOP/s. All processes must call it.
    ///
    /// # Errors
    /// A process that is late or gone.
    pub(crate) fn peak(&self, cores: usize) -> Result<Option<f64>> {
        let is_narrow = self.config.dtype == DType::BF16;
        if !self.processors.is_empty() {
            return Ok(is_narrow.then(|| self.processors.tensor_peak(&self.processes)).flatten());
        }
        let unit = is_narrow.then(Unit::bf16).flatten().unwrap_or_else(Unit::f32);
        // Processes of one host share its cores: only measured at the same time do their peaks add up to the host's.
        self.processes.gather(&[]).map_err(unreached)?;
        let own = unit.measure(cores) * 1e9;
        let all = self.processes.gather(&own.to_le_bytes()).map_err(unreached)?;
        let peaks = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
        Ok(Some(peaks.map(f64::from_le_bytes).sum()))
    }

    /// What `plan` means, on a machine with `cores` cores.
    pub fn new(plan: &Plan, cores: impl Into<Cores>) -> Setup {
        let experiment = &plan.experiment;
        Setup {
            config: planned_config(plan),
            groups: plan.groups.iter().zip(&plan.passes).map(Attending::of).collect(),
            frequencies: plan.shape.frequencies(experiment.data.tokens),
            packed: experiment.attention.masking.documents == Some(Packed::ByData),
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
            offload_folder: experiment.offload_folder(),
            deadline: experiment.mesh.deadline,
            engine: experiment.mesh.engine,
            cores: cores.into(),
            processes: World::alone(),
            core: experiment.host.core,
            processors: Processors::default(),
        }
    }

    /// The same on the devices that the experiment names, as many of them as it is planned for.
    ///
    /// # Errors
    /// When a GPU is named that cannot be used.
    pub fn on_its_device(plan: &Plan, cores: usize) -> Result<Setup> {
        Setup::on_its_device_over(&World::alone(), plan, cores)
    }

    /// [`Setup::on_its_device`] over the processes of a world, of several each with a GPU of its own.
    ///
    /// # Errors
    /// As there, and when there are fewer GPUs than processes on this host.
    pub fn on_its_device_over(world: &World, plan: &Plan, cores: usize) -> Result<Setup> {
        let processors = device::open_planned(&plan.experiment, world)?;
        Ok(Setup::new(plan, cores).on(processors).over(world))
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.grid().ranks()
    }

    /// Where they run: the processes must be able to share them evenly.
    pub(crate) fn places(&self) -> Places {
        self.processes.places(self.world())
    }

    /// Which rank is where.
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

    /// The names of the strategies of its layers: `ring`, or `megatron and halo`.
    pub(crate) fn strategies(&self) -> String {
        let mut names: Vec<&str> = self.groups.iter().map(|group| group.strategy.name()).collect();
        names.dedup();
        names.join(" and ")
    }

    /// The same split in one way: all layers by one strategy, in the strategy's own layout and between ranks that weigh alike.
    ///
    /// # Errors
    /// When they cannot be split so.
    pub fn split(
        &self,
        strategy: Strategy,
        ranks: usize,
        route: Route,
    ) -> std::result::Result<Setup, ScheduleError> {
        let setting = Setting::new(strategy, self.tokens, ranks, self.heads());
        let groups = self.groups.iter().map(|group| (group.layers.clone(), group.mask.clone()));
        let groups = Attending::all(groups, &Setting { route, ..setting }, self.packed)?;
        // Positions are no whole blocks then.
        Ok(Setup { groups, sequence: ranks, block: None, ..self.clone() })
    }

    /// How many heads a rank has.
    fn heads(&self) -> Heads {
        let shape = self.config.shape.part_of(self.tensor);
        Heads { query: shape.num_attention_heads, key_value: shape.num_key_value_heads }
    }

    /// The attention of every layer.
    fn attention(&self, backend: &Backend, comm: Arc<dyn Communicator>) -> Attentions {
        let kernel = kernel(self.kernel, self.deterministic, self.dropout, backend);
        let scale = 1.0 / (self.config.shape.head_dim as f64).sqrt();
        let first = &self.groups[0];
        let first = Attention::new(first.schedules.clone(), scale, comm, kernel).wired(self.wire);
        let groups = self.groups.iter();
        let groups =
            groups.map(|group| (first.beside(group.schedules.clone()), group.layers.clone()));
        Attentions::new(self.config.shape.num_hidden_layers, groups)
    }

    /// Runs `program` on all ranks, and returns what the first rank of this process does.
    ///
    /// # Errors
    /// Those of the ranks, and processes that cannot share them evenly.
    pub(crate) fn run<T: Send>(
        self: &Arc<Self>,
        program: impl Fn(Rank) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let (processes, ranks) = (&self.processes, self.world());
        here(processes, ranks).map_err(|error| once(processes, error))?;
        self.join()?;
        let options = Options { world: ranks, deadline: self.deadline, stop: Arc::default() };
        let mut found = self.joined().run(&options, |comm| program(self.rank(comm)?))?;
        Ok(found.swap_remove(0))
    }

    /// The mesh of a rank, and which elements of parameters are its own. All ranks must call it.
    pub(crate) fn divided(&self, comm: &Arc<dyn Communicator>) -> Result<(Mesh, Division)> {
        let mesh = Mesh::of(comm.clone(), self.grid())?;
        let place = (comm.rank(), self.ranks_of_process());
        let division = Division::new(&mesh, place, (self.parts(), self.sharding()))?;
        Ok((mesh, division))
    }

    /// This rank, on the thread that will run it: its share of the cores, its attention, its place in the mesh.
    pub(crate) fn rank(self: &Arc<Self>, comm: Arc<dyn Communicator>) -> Result<Rank> {
        let rank = comm.rank();
        memory::enter(rank);
        let here = self.ranks_of_process();
        let own = rank % here;
        let backend = if let Some(processor) = self.processors.of(own, here) {
            Backend::Gpu(processor.clone())
        } else {
            let enter = move || memory::enter(rank);
            Backend::Cpu(Pool::share(&self.cores, here, enter).with(self.core)?)
        };
        let backend = backend.in_blocks(self.block);
        let meter = Metered::at(comm.clone(), self.places());
        let counted: Arc<dyn Communicator> = meter.clone();
        let (mesh, division) = self.divided(&counted)?;
        let attention = self.attention(&backend, mesh.group(&[Axis::Sequence]).clone());
        let Frequencies { inverse, factor } = &self.frequencies;
        let rotary = Rotary::new(attention.positions(), inverse, *factor);
        let tensor = TensorRanks::new(mesh.group(&[Axis::Tensor]).clone());
        // What setting up the mesh cost is no step's.
        meter.take();
        Ok(Rank {
            model: Llama::new(&self.config, self.loss_chunk),
            attention,
            rotary: Arc::new(rotary),
            tensor,
            backend,
            device: own / self.ranks_of_device(),
            mesh,
            division,
            meter,
            comm,
            offload: None,
            room: Room::ANY,
            setup: self.clone(),
        })
    }
}

/// The attention kernel of a name; those of the CPU are always deterministic. Of a GPU's the fastest, and where weights are to be
/// left out the fastest that can.
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

fn gpu_kernels(
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

/// The model of a shape, whose vocabulary must be known.
///
/// # Errors
/// A vocabulary that is not known.
pub fn model_config(shape: &Shape, dtype: Dtype) -> Result<Config> {
    let vocab_size = shape.vocab_size.ok_or_else(|| TrainError::Configuration {
        message: "the size of the vocabulary is not known".into(),
        hint: Some("set `model.vocab_size`, or `data.tokenizer`".into()),
    })?;
    Ok(Config { shape: shape.clone(), vocab_size, dtype: element_type(dtype), lora: None })
}
