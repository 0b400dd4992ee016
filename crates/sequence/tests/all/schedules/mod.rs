//! Every strategy, mask, layout and number of ranks: proved, and with the bytes of its closed form.

mod bytes;
mod every;
mod refused;
mod shapes;
mod taken;

use annulus_sequence::{Block, Heads, Hop, Mask, Part, Route, Rule, Schedule, Split, Strategy};

/// All variants on `world` ranks with these heads: every width, exchange, shape and group.
pub(crate) fn variants(world: usize, heads: Heads) -> Vec<Strategy> {
    let mut all = Strategy::variants(world, heads);
    all.push(Strategy::Striped { width: 3 });
    all.retain(|strategy| strategy.check(world, heads).is_ok());
    all
}

/// The forward schedule, and the backward schedules of all routes.
pub(crate) fn schedules(strategy: Strategy, split: &Split) -> Vec<Schedule> {
    let backward = |how: &Route| strategy.backward(split, *how);
    let all = [strategy.forward(split)].into_iter().chain(strategy.routes().iter().map(backward));
    all.collect::<Result<_, _>>().expect("variants run")
}

pub(crate) fn window(width: usize) -> Mask {
    Mask::causal().and(Rule::Window(width))
}

/// The number of times that every rank sends a part, equal on all.
pub(crate) fn moves(schedule: &Schedule, part: Part) -> usize {
    let of_rank = |hops: &Vec<Hop>| blocks(hops).filter(|block| block.part == part).count();
    let counts: Vec<usize> = schedule.listed().iter().map(of_rank).collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "ranks differ: {counts:?}");
    counts[0]
}

/// The blocks that are sent.
pub(crate) fn blocks(hops: &[Hop]) -> impl Iterator<Item = Block> {
    hops.iter().flat_map(|hop| &hop.sends).map(|sent| sent.block)
}
