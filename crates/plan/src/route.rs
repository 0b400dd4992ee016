//! The choice of a backward route: keys and values travel, or queries, whichever sends less.
//!
//! Keys and values travel with their gradients, or queries with the gradient of their output, followed by their own (BurstAttention, arXiv
//! 2403.09347). Which sends less depends on how many query heads share a KV head, on the mask, and on the comm dtypes; it is counted
//! from the schedules. Of routes that send as much, 16-bit gradients take the one that rounds them least often.

use annulus_experiment::route_word;
use annulus_sequence::{Bytes, Route, Schedule, Split};
use annulus_text::size;
use annulus_yaml::Problems;

use crate::{LayerGroup, Plan};

/// The backward route, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteChoice {
    /// The route that was written or chosen.
    pub how: Route,
    /// Whether the route was left open, and chosen because it sends least.
    pub automatic: bool,
    /// Every route that the strategy has, and the bytes that its busiest rank sends in one attention of a micro-batch.
    pub sent: Vec<(Route, u64)>,
}

impl Plan {
    /// The backward route that is written for a layer group, or the one that sends least, with its schedule and with what every route
    /// sends.
    pub(crate) fn routes_of(
        &self,
        group: &LayerGroup,
        split: &Split,
    ) -> Result<(RouteChoice, Schedule), Problems> {
        let (strategy, written) = (group.strategy, group.written);
        let mut sent = Vec::new();
        let mut best: Option<(Route, u64, Schedule)> = None;
        for how in self.by_preference() {
            if !strategy.routes().contains(&how) {
                continue;
            }
            let schedule = strategy.backward(split, how);
            let schedule = schedule.map_err(|error| self.refused(group, &error))?;
            let bytes = Bytes::of(&schedule, self.block()).0.into_iter().max().unwrap_or_default();
            sent.push((how, bytes));
            let less = best.as_ref().is_none_or(|(_, least, _)| bytes < *least);
            if written.map_or(less, |written| written == how) {
                best = Some((how, bytes, schedule));
            }
        }
        let (how, _, schedule) =
            best.expect("every strategy has a backward route, and rules refuse others");
        Ok((RouteChoice { how, automatic: written.is_none(), sent }, schedule))
    }

    /// All routes by preference: of several that send as much, the first is taken.
    fn by_preference(&self) -> [Route; 4] {
        let [first, second] = if self.experiment.wire().gradient.bytes() < 4 {
            [Route::Direct, Route::Reversed]
        } else {
            [Route::Reversed, Route::Direct]
        };
        [first, second, Route::Queries, Route::Travelling]
    }
}

impl RouteChoice {
    /// The route and the reason for it, in a line.
    pub(crate) fn to_text(&self) -> String {
        let word = route_word(self.how);
        if self.sent.iter().all(|(_, bytes)| *bytes == 0) {
            return String::from("nothing travels");
        }
        let [only] = self.sent.as_slice() else {
            let mut sent = self.sent.clone();
            sent.sort_by_key(|(_, bytes)| *bytes);
            let routes =
                sent.iter().map(|(how, bytes)| format!("{} {}", route_word(*how), size(*bytes)));
            let routes = routes.collect::<Vec<_>>().join(", ");
            let why = if self.automatic { "sends least" } else { "as written" };
            return format!("{word} ({why}). Bytes per layer and micro-batch: {routes}");
        };
        format!(
            "{word}: the only backward route, {} from the busiest rank per layer and micro-batch",
            size(only.1)
        )
    }
}
