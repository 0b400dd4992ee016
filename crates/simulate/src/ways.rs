//! Backward routes of a strategy compared: bytes and time.
//!
//! Keys and values travel with their gradients, or queries with the gradient of their output and
//! their own in the wake (BurstAttention, arXiv 2403.09347). Which is less depends on how many query
//! heads share a key/value head, and on the types on the wire.

use annulus_experiment::route_word;
use annulus_plan::{LayerGroup, Plan};
use annulus_sequence::{Bytes, Route};
use annulus_text::{duration, size};

use crate::Cluster;
use crate::load::Counted;
use crate::work::Work;

/// One backward route of one attention, with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The backward route.
    pub how: Route,
    /// Seconds until the last rank is done.
    pub seconds: f64,
    /// Bytes that the busiest rank sends.
    pub bytes: u64,
}

impl Way {
    /// The differing backward routes of the attention of a plan's first layer group on `cluster`, fewest bytes first.
    pub fn all(plan: &Plan, cluster: &Cluster) -> Vec<Way> {
        let Some(LayerGroup { strategy, .. }) = plan.groups.first() else { return Vec::new() };
        let Ok(split) = plan.split(&plan.groups[0]) else { return Vec::new() };
        let cluster = &cluster.of_replica(&plan.experiment.mesh, 0);
        let mut counted = Counted::new(plan.block(), cluster.rates.tile);
        let way = |how: &Route| {
            let schedule = strategy.backward(&split, *how).ok()?;
            let bytes = Bytes::of(&schedule, plan.block()).0.into_iter().max().unwrap_or_default();
            let seconds = Work::of(&schedule, &mut counted, cluster).seconds(cluster);
            Some(Way { how: *how, seconds, bytes })
        };
        let mut ways: Vec<Way> = strategy.routes().iter().filter_map(way).collect();
        ways.sort_by_key(|way| way.bytes);
        ways
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
