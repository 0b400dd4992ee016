//! The cost of every backward route of a strategy, in bytes and time. A plan takes the one that sends least; `plan --cluster` shows all.

use annulus_experiment::route_word;
use annulus_plan::{LayerGroup, Plan};
use annulus_sequence::Route;
use annulus_text::{duration, size};

use crate::Cluster;
use crate::load::Counted;
use crate::work::Work;

/// A backward route of one attention, and its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteCost {
    /// The backward route.
    pub how: Route,
    /// Seconds until the last rank is done.
    pub seconds: f64,
    /// Bytes that the busiest rank sends.
    pub bytes: u64,
}

impl RouteCost {
    /// The differing backward routes of the attention of a plan's first layer group on `cluster`, fewest bytes first.
    pub fn all(plan: &Plan, cluster: &Cluster) -> Vec<RouteCost> {
        let Some(LayerGroup { strategy, route, .. }) = plan.groups.first() else {
            return Vec::new();
        };
        let Ok(split) = plan.split(&plan.groups[0]) else { return Vec::new() };
        let cluster = &cluster.of_replica(&plan.experiment.mesh, 0);
        let mut counted = Counted::new(plan.block(), cluster.rates.tile);
        let cost = |how: &Route| {
            // The plan has counted the bytes of every route.
            let (_, bytes) = route.sent.iter().find(|(sent, _)| sent == how)?;
            let schedule = strategy.backward(&split, *how).ok()?;
            let seconds = Work::of(&schedule, &mut counted, cluster).seconds(cluster);
            Some(RouteCost { how: *how, seconds, bytes: *bytes })
        };
        let mut costs: Vec<RouteCost> = strategy.routes().iter().filter_map(cost).collect();
        costs.sort_by_key(|cost| cost.bytes);
        costs
    }

    /// The route's word.
    pub fn word(self) -> &'static str {
        match self.how {
            Route::Travelling => "keys and values travel all the way round",
            Route::Reversed => "keys and values travel against the forward ring",
            Route::Direct => {
                "keys and values travel against the forward ring, and every gradient goes straight to its owner"
            }
            Route::Queries => "queries travel",
        }
    }

    /// The route and its cost in a line.
    pub(crate) fn to_text(self) -> String {
        let (seconds, bytes) = (duration(self.seconds), size(self.bytes));
        let route = route_word(self.how);
        format!(
            "  `backward: {route}`: {seconds} backward in a layer, {bytes} sent; {}",
            self.word()
        )
    }
}
