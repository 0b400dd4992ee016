//! The schedules of a plan: of every kind of layers, forward and backward, and what is proved of
//! them.

use annulus_sequence::{Heads, Proof, Schedule, Split, StrategyError, prove};

use crate::mask::mask_of;
use crate::{Experiment, LayerKind, Packed, Plan, Problems};

/// A schedule and what is proved of it, for each pass.
#[derive(Debug)]
pub(crate) struct Passes {
    pub(crate) forward: (Schedule, Proof),
    pub(crate) backward: (Schedule, Proof),
}

impl Plan {
    /// The schedules of both passes of some layers, forward first, not proved.
    pub(crate) fn schedules(&self, kind: &LayerKind) -> Result<[Schedule; 2], Problems> {
        let split = self.split(kind)?;
        let refused = |error: StrategyError| self.refused(kind, &error);
        let forward = kind.strategy.forward(&split).map_err(refused)?;
        Ok([forward, kind.strategy.backward(&split, kind.back.how).map_err(refused)?])
    }

    /// The schedules of both passes of some layers, proved.
    pub(crate) fn passes_of(&self, kind: &LayerKind) -> Result<Passes, Problems> {
        let [forward, backward] = self.schedules(kind)?;
        let proof = |schedule: &Schedule| {
            prove(schedule).map_err(|flaw| {
                let strategy = schedule.strategy;
                let message = format!("the schedule of `{strategy}` is wrong: {flaw}");
                let key = self.key(kind, "strategy");
                Problems::from(self.experiment.places.problem(&key, message))
            })
        };
        let proofs = (proof(&forward)?, proof(&backward)?);
        Ok(Passes { forward: (forward, proofs.0), backward: (backward, proofs.1) })
    }

    /// That the strategy cannot run so, at the key that asks for it.
    pub(crate) fn refused(&self, kind: &LayerKind, error: &StrategyError) -> Problems {
        let places = &self.experiment.places;
        let key = match error {
            StrategyError::Shape { .. } => "shape",
            StrategyError::Groups { .. } => "groups",
            _ => "strategy",
        };
        let key = self.key(kind, key);
        let key = if places.contains(&key) { key } else { self.key(kind, "strategy") };
        let problem = places.problem(&key, error.to_string());
        match error.hint() {
            Some(hint) => problem.hint(hint).into(),
            None => problem.into(),
        }
    }

    /// Where `name` is said of these layers: for all, unless they have their own.
    fn key(&self, kind: &LayerKind, name: &str) -> String {
        let own = format!("{}.{name}", kind.section());
        if self.experiment.places.contains(&own) { own } else { format!("attention.{name}") }
    }

    pub(crate) fn heads(&self) -> Heads {
        let (query, key_value) = (self.shape.num_attention_heads, self.shape.num_key_value_heads);
        Heads { query, key_value }
    }

    /// The sequence, dealt to the ranks in proportion to their weights: in all layers as those that do
    /// not slide would have it.
    pub(crate) fn split(&self, kind: &LayerKind) -> Result<Split, Problems> {
        let Experiment { mesh, data, attention, .. } = &self.experiment;
        let refused = |error: StrategyError| self.refused(kind, &error);
        kind.strategy.check(mesh.sequence, self.heads()).map_err(refused)?;
        let layout = self.experiment.layout();
        let weights = mesh.weights.clone().unwrap_or_else(|| vec![1; mesh.sequence]);
        // Of documents that only the data knows, what is made must hold for all.
        let by_data = attention.masking.documents == Some(Packed::ByData);
        let [mask, dealing] =
            [kind.mask.clone(), mask_of(&attention.masking, attention.masking.window)]
                .map(|mask| if by_data { mask.of_any_documents() } else { mask });
        let dealt = layout.deal_weighted(&dealing, data.tokens, &weights);
        let dealt = dealt.map_err(|error| refused(StrategyError::Deal(error)))?;
        Ok(Split::new(&mask, layout, dealt, self.heads()))
    }
}
