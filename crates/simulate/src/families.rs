//! The strategies to choose from, in all their shapes.

use annulus_sequence::{Heads, Strategy};

use crate::Cluster;

/// The most ranks for which every shape is tried.
const FEW: usize = 256;

/// Every strategy and every exchange, each with the shapes worth trying on `world` ranks.
pub(crate) fn families(world: usize, heads: Heads, cluster: &Cluster) -> Vec<Vec<Strategy>> {
    let tried = |strategy| tried(strategy, world, heads, cluster, FEW);
    Strategy::ALL.into_iter().flat_map(Strategy::exchanges).map(tried).collect()
}

/// The shapes of a strategy; on more than `few` ranks those whose inner groups are the cluster's, if such a shape runs with these heads.
pub(crate) fn tried(
    strategy: Strategy,
    world: usize,
    heads: Heads,
    cluster: &Cluster,
    few: usize,
) -> Vec<Strategy> {
    let of_cluster = |strategy: &Strategy| {
        let inner = strategy.inner_group();
        let is_group = |inner| cluster.inner().any(|devices| devices == inner);
        inner.is_some_and(is_group) && strategy.check(world, heads).is_ok()
    };
    let mut all = shapes(strategy, world);
    if world > few && all.iter().any(of_cluster) {
        all.retain(of_cluster);
    }
    all
}

/// A strategy in all its shapes on `world` ranks, except those that equal another strategy; where there are none, with its shape left open.
pub(crate) fn shapes(strategy: Strategy, world: usize) -> Vec<Strategy> {
    let mut shaped = strategy.shapes(world);
    let open = shaped.remove(0);
    shaped.retain(|strategy| strategy.shape().is_some_and(|shape| !shape.contains(&1)));
    if shaped.is_empty() { vec![open] } else { shaped }
}

/// The strategy with its shape left open.
pub(crate) fn bare(strategy: Strategy) -> Strategy {
    strategy.shapes(1)[0]
}
