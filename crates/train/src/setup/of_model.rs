//! The setup of a model without a plan.

use annulus_comm::World;
use annulus_experiment::{
    Engine, Kernel, Offload, OffloadPlace, Order, Parallel, Recompute, State, StateAxes,
};
use annulus_machine::Core;
use annulus_model::Config;
use annulus_ops::Cores;
use annulus_plan::heads_of;
use annulus_sequence::{Heads, Mask, Rule, Setting, Wire};

use crate::setup::assemble::{LayerGroupSchedules, Setup};
use crate::setup::processors::Processors;
use crate::setup::shared::DEADLINE;
use crate::{Result, TrainError};

/// No weights are updated, so there is no optimizer state to shard.
const REPLICATED: Parallel = Parallel { state: State::Replicated, state_axes: StateAxes::All };

impl Setup {
    /// The setup of a model that is not trained, and so has no plan: every sequence is split as in `setting` over ranks that each hold the
    /// whole model, one sequence at a time, with causal masks and the windows of the model's own layers, on the CPU of this process alone.
    ///
    /// # Errors
    /// Heads of `setting` that are not the model's; masks, strategy and ranks that do not go together.
    pub fn of_model(config: Config, setting: &Setting, cores: impl Into<Cores>) -> Result<Setup> {
        check_heads(setting.heads, heads_of(&config.shape))?;
        let tokens = setting.tokens;
        let group = |(window, layers): (Option<usize>, Vec<usize>)| {
            (layers, window.into_iter().map(Rule::Window).fold(Mask::causal(), Mask::and))
        };
        let groups = config.shape.windows(tokens).into_iter().map(group);
        Ok(Setup {
            frequencies: config.shape.frequencies(tokens),
            groups: LayerGroupSchedules::all(groups, setting, false)?,
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
            offload_place: OffloadPlace::default(),
            deadline: DEADLINE,
            engine: Engine::Auto,
            cores: cores.into(),
            processes: World::alone(),
            core: Core::here(),
            processors: Processors::default(),
        })
    }
}

/// Checks that sequences are split for the heads that the model has: schedules of other heads would send too few, or none.
fn check_heads(found: Heads, wanted: Heads) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let said = |Heads { query, key_value }| format!("{query} query and {key_value} KV heads");
    Err(TrainError::configuration(
        format!("a setting for {}, but the model has {}", said(found), said(wanted)),
        "`heads` of the setting are those of the model's `config.shape`",
    ))
}
