//! The schedules of a plan, forward and backward for every layer group: made and proved once, and run as they are.

use annulus_architecture::Shape;
use annulus_experiment::{DocumentBounds, Experiment, mask_of};
use annulus_sequence::{Heads, Schedule, ScheduleError, Schedules, Setting, Split, StrategyError};
use annulus_yaml::Problems;

use crate::{LayerGroup, Plan, tensor};

/// A layer group's schedules that are not proved yet.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    split: Split,
    pub(crate) backward: Schedule,
}

impl Plan {
    /// Makes the schedules that the group's backward route is chosen by, and chooses it.
    pub(crate) fn draft(&self, group: &mut LayerGroup) -> Result<Draft, Problems> {
        let split = self.split(group)?;
        let (route, backward) = self.routes_of(group, &split)?;
        group.route = route;
        Ok(Draft { split, backward })
    }

    /// The forward schedule of a layer group.
    pub(crate) fn forward(&self, group: &LayerGroup, draft: &Draft) -> Result<Schedule, Problems> {
        group.strategy.forward(&draft.split).map_err(|error| self.refused(group, &error))
    }

    /// The proved forward and backward schedules of a layer group.
    pub(crate) fn schedules_of(
        &self,
        group: &LayerGroup,
        draft: Draft,
    ) -> Result<Schedules, Problems> {
        let forward = self.forward(group, &draft)?;
        let made = Schedules::prove(forward, draft.backward);
        made.map_err(|error| match error {
            ScheduleError::Strategy(error) => self.refused(group, &error),
            flaw @ ScheduleError::Flaw { .. } => {
                let key = self.key(group, "strategy");
                self.experiment.places.problem(&key, flaw.to_string()).into()
            }
        })
    }

    /// The error that the strategy cannot run so, placed at the key that asks for it.
    pub(crate) fn refused(&self, group: &LayerGroup, error: &StrategyError) -> Problems {
        let places = &self.experiment.places;
        let key = match error {
            StrategyError::Shape { .. } => "shape",
            StrategyError::Groups { .. } => "groups",
            _ => "strategy",
        };
        let key = self.key(group, key);
        let key = if places.contains(&key) { key } else { self.key(group, "strategy") };
        // What suits the ranks and tokens of the file may not suit those of the command line.
        let others: &[&str] = match error {
            StrategyError::Shard(_) => &["mesh.sequence", "data.tokens"],
            StrategyError::Groups { .. }
            | StrategyError::Sharing { .. }
            | StrategyError::Queries { .. } => &[],
            StrategyError::Heads { .. } => &["mesh.sequence", "model.num_attention_heads"],
            StrategyError::TooManyRanks { .. }
            | StrategyError::Shape { .. }
            | StrategyError::Apart { .. } => &["mesh.sequence"],
        };
        let key = places.to_blame(&[&[key.as_str()], others].concat());
        let problem = places.problem(key, error.to_string());
        match error.hint() {
            Some(hint) => problem.hint(hint).into(),
            None => problem.into(),
        }
    }

    /// The path of the key `name` that holds for this group: its own section's where it is written, else the one of all layers.
    pub(crate) fn key(&self, group: &LayerGroup, name: &str) -> String {
        let own = format!("{}.{name}", group.section());
        if self.experiment.places.contains(&own) { own } else { format!("attention.{name}") }
    }

    /// Query heads of a rank, and the KV heads that they share.
    pub fn heads(&self) -> Heads {
        heads_of(&self.own)
    }

    /// How a group's attention is split: positions sharded in proportion to the ranks' weights, by the layout of the layers without a
    /// sliding window.
    ///
    /// # Errors
    /// When the strategy cannot split the sequence so.
    pub fn split(&self, group: &LayerGroup) -> Result<Split, Problems> {
        let Experiment { mesh, data, attention, .. } = &self.experiment;
        if let Some(problem) = self.beyond_strict(group) {
            return Err(problem.into());
        }
        let equal = Setting::new(group.strategy, data.tokens, mesh.sequence, self.heads());
        let setting = Setting {
            layout: self.experiment.layout(),
            weights: mesh.weights.clone().unwrap_or_else(|| equal.weights.clone()),
            block: self.experiment.block(),
            ..equal
        };
        // Schedules must hold for any documents where only the data knows them.
        let by_data = attention.masking.documents == Some(DocumentBounds::ByData);
        let [mask, sharding] =
            [group.mask.clone(), mask_of(&attention.masking, attention.masking.near())]
                .map(|mask| if by_data { mask.of_any_documents() } else { mask });
        let shards = setting.shards(&sharding).map_err(|error| self.refused(group, &error))?;
        tensor::share_rows(&self.experiment, &shards)?;
        Ok(setting.split(&mask, shards))
    }
}

/// Query heads of a model, and the KV heads that they share.
pub fn heads_of(shape: &Shape) -> Heads {
    Heads { query: shape.num_attention_heads, key_value: shape.num_key_value_heads }
}
