//! Limits of `reproducible: strict`, as far as a model and a strategy are needed to tell.

use annulus_machine::blocks::STRICT_TERMS;
use annulus_yaml::Problem;

use crate::{LayerGroup, Plan};

impl Plan {
    /// The reason why a layer group's sums cannot be order-free; `None`: they can.
    pub(crate) fn beyond_strict(&self, group: &LayerGroup) -> Option<Problem> {
        let block = self.experiment.block()?;
        let places = &self.experiment.places;
        if group.strategy.stores_scores() {
            let name = group.strategy.name();
            let message = format!("`reproducible: strict` does not go with `{name}`");
            let hint =
                String::from("use another strategy: this one adds up scores as they are kept");
            return Some(places.problem(&self.key(group, "strategy"), message).hint(hint));
        }
        // No sum has more than a term per block and query head: the longest are a key's gradient, over the query heads that share it, and
        // the gradient of the norm of heads.
        let (data, heads) = (&self.experiment.data, self.heads().query);
        let terms = data.batch * (data.tokens / block) * heads;
        if terms <= STRICT_TERMS {
            return None;
        }
        let message = format!(
            "`reproducible: strict` adds up at most {} blocks of {block} tokens in a step with {heads} query heads, found {}",
            STRICT_TERMS / heads,
            data.batch * (data.tokens / block)
        );
        let hint = String::from("take fewer sequences per step");
        Some(places.problem("data.batch", message).hint(hint))
    }
}
