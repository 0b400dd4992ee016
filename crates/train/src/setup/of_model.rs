//! The setup of a model without a plan.

use std::path::PathBuf;

use annulus_comm::World;
use annulus_experiment::{Engine, Kernel, Offload, Order, Parallel, Recompute, State, StateAxes};
use annulus_machine::Core;
use annulus_model::Config;
use annulus_ops::Cores;
use annulus_sequence::{Mask, Rule, Setting, Wire};

use crate::Result;
use crate::setup::assemble::{Attending, Setup};
use crate::setup::processors::Processors;
use crate::setup::shared::DEADLINE;

/// No weights are updated, so there is no optimizer state to shard.
const REPLICATED: Parallel = Parallel { state: State::Replicated, state_axes: StateAxes::All };

impl Setup {
    /// The setup of a model that is not trained, and so has no plan: every sequence is split as in `setting` over ranks that each hold the
    /// whole model, one sequence at a time, with causal masks and the windows of the model's own layers, on the CPU of this process alone.
    ///
    /// # Errors
    /// Masks, strategy and ranks that do not go together.
    pub fn of_model(config: Config, setting: &Setting, cores: impl Into<Cores>) -> Result<Setup> {
        let tokens = setting.tokens;
        let group = |(window, layers): (Option<usize>, Vec<usize>)| {
            (layers, window.into_iter().map(Rule::Window).fold(Mask::causal(), Mask::and))
        };
        let groups = config.shape.windows(tokens).into_iter().map(group);
        Ok(Setup {
            frequencies: config.shape.frequencies(tokens),
            groups: Attending::all(groups, setting, false)?,
            config,
            packed: false,
            kernel: Kernel::Fused,
            deterministic: true,
            block: None,
            dropout: false,
            wire: Wire::default(),
            tokens,
            data: 1,
            sequence: setting.weights.len(),
            tensor: 1,
            order: Order::SequenceFirst,
            micro_batch: 1,
            parallel: REPLICATED,
            recompute: Recompute::Layer,
            loss_chunk: 1024,
            mlp_chunk: None,
            offload: Offload::None,
            offload_folder: PathBuf::new(),
            deadline: DEADLINE,
            engine: Engine::Auto,
            cores: cores.into(),
            processes: World::alone(),
            core: Core::here(),
            processors: Processors::default(),
        })
    }
}
