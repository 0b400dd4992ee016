//! Every rank gathers all keys and values: the naive baseline.
//!
//! What Llama 3 does (arXiv 2407.21783, section 3.3.2), over plain contiguous chunks. Four ranks:
//!
//! ```text
//!          rank 0      rank 1      rank 2      rank 3
//! hop 0    tile 0      tile 1      tile 2      tile 3      while all blocks go to everybody
//! hop 1    tiles 1 2 3 tiles 0 2 3 tiles 0 1 3 tiles 0 1 2 those that are needed
//! hop 2    gradients of every block are summed at its owner (backward)
//! ```
//!
//! No gathered block is freed before the last tile, so memory grows with the number of ranks.

use super::local;
use super::split::{Split, backward_tile, forward_tile};
use crate::{Buffer, Collective, Hop, Move};

pub(super) fn forward(split: &Split) -> Vec<Vec<Hop>> {
    if split.world() == 1 {
        return local::forward();
    }
    let hops = |rank| {
        let [mut own, mut rest] = gathered(split, rank);
        let needed = |owner: &usize| split.needs(rank, *owner);
        own.tiles = [rank].into_iter().filter(needed).map(|own| forward_tile(rank, own)).collect();
        rest.tiles =
            others(split, rank).filter(needed).map(|owner| forward_tile(rank, owner)).collect();
        vec![own, rest]
    };
    (0..split.world()).map(hops).collect()
}

/// Every rank contributes to every block, zeros if need be: all take part in the sum.
pub(super) fn backward(split: &Split) -> Vec<Vec<Hop>> {
    if split.world() == 1 {
        return local::backward();
    }
    let hops = |rank| {
        let [mut own, mut rest] = gathered(split, rank);
        own.tiles = vec![backward_tile(rank, rank)];
        rest.tiles = others(split, rank).map(|owner| backward_tile(rank, owner)).collect();
        let contribution = |block: usize, from: usize, to: usize| -> Move {
            split.move_whole(Buffer::contribution(block), from, to)
        };
        let sum = Hop {
            sends: others(split, rank).map(|owner| contribution(owner, rank, owner)).collect(),
            receives: others(split, rank).map(|from| contribution(rank, from, rank)).collect(),
            collective: Some(Collective::ReduceScatter),
            ..Hop::default()
        };
        vec![own, rest, sum]
    };
    (0..split.world()).map(hops).collect()
}

/// The two hops that gather and free, without tiles.
fn gathered(split: &Split, rank: usize) -> [Hop; 2] {
    let block = |owner: usize, from: usize, to: usize| -> Move {
        split.move_whole(Buffer::key_value(owner), from, to)
    };
    let gather = Hop {
        sends: others(split, rank).map(|to| block(rank, rank, to)).collect(),
        receives: others(split, rank).map(|from| block(from, from, rank)).collect(),
        collective: Some(Collective::AllGather),
        ..Hop::default()
    };
    let frees = others(split, rank).map(Buffer::key_value).collect();
    [gather, Hop { frees, ..Hop::default() }]
}

/// All ranks but this one, in order.
fn others(split: &Split, rank: usize) -> impl Iterator<Item = usize> {
    (0..split.world()).filter(move |other| *other != rank)
}
