//! Assigns blocks to ranks such that all ranks compute about equally many visible pairs, and hold equally many blocks.
//!
//! The heaviest remaining block goes to the rank with the least work for its weight (Graham: Bounds on multiprocessing timing anomalies,
//! 1969) that has room.

use std::cmp::Reverse;

use super::shares;
use crate::{Mask, Positions, Run, pairs_between};

/// The positions of every rank, in blocks of `width`.
pub(super) fn shard(mask: &Mask, tokens: usize, weights: &[usize], width: usize) -> Vec<Positions> {
    let all = Positions::all(tokens);
    let block = |index: usize| {
        let start = index * width;
        Run::contiguous(start, width.min(tokens - start))
    };
    let blocks = 0..tokens.div_ceil(width);
    let pairs = |index: usize| pairs_between(mask, &Positions::new(vec![block(index)]), &all);
    let mut heaviest: Vec<(u64, usize)> = blocks.map(|index| (pairs(index), index)).collect();
    heaviest.sort_unstable_by_key(|(pairs, index)| (Reverse(*pairs), *index));

    let mut ranks = Ranks::new(heaviest.len(), weights);
    for (pairs, index) in heaviest {
        ranks.give(index, pairs);
    }
    ranks
        .blocks
        .into_iter()
        .map(|mut indices| {
            indices.sort_unstable();
            Positions::new(indices.into_iter().map(block).collect())
        })
        .collect()
}

/// A scale that makes quotients of whole numbers precise enough to compare.
pub(super) const FINE: u128 = 1 << 32;

/// What ranks hold so far.
struct Ranks<'a> {
    weights: &'a [usize],
    blocks: Vec<Vec<usize>>,
    /// The number of blocks that each rank may still take.
    room: Vec<usize>,
    pairs: Vec<u64>,
}

impl Ranks<'_> {
    fn new(blocks: usize, weights: &[usize]) -> Ranks<'_> {
        let world = weights.len();
        let room = shares(blocks, weights);
        Ranks { weights, blocks: vec![Vec::new(); world], room, pairs: vec![0; world] }
    }

    fn give(&mut self, block: usize, pairs: u64) {
        let with_room = (0..self.weights.len()).filter(|rank| self.room[*rank] > 0);
        // Ranks of weight 0 have no room.
        let work =
            |rank: &usize| u128::from(self.pairs[*rank]) * FINE / self.weights[*rank] as u128;
        let Some(rank) = with_room.min_by_key(work) else { return };
        self.blocks[rank].push(block);
        self.room[rank] -= 1;
        self.pairs[rank] += pairs;
    }
}
