//! Keys and values go round a ring of ranks while each rank computes with the block at hand.
//!
//! Ring Attention (arXiv 2310.01889) deals contiguous chunks, Striped Attention (arXiv 2311.09431)
//! stripes, Megatron context parallelism zigzag chunks: the schedule is the same. Four ranks; a
//! number is the owner of the block at hand, an arrow its transfer, posted before the tile is
//! computed:
//!
//! ```text
//!          rank 0    rank 1    rank 2    rank 3
//! hop 0    tile 0 ─► tile 1 ─► tile 2 ─► tile 3 ─►    to rank 0
//! hop 1    tile 3 ─► tile 0 ─► tile 1 ─► tile 2 ─►
//! hop 2    tile 2 ─► tile 3 ─► tile 0 ─► tile 1 ─►
//! hop 3    tile 1    tile 2    tile 3    tile 0       nothing moves any more
//! ```
//!
//! Backward, the gradient of a block visits the same ranks one hop behind its keys and values:
//! while a rank computes its contribution, the sum so far arrives; after the wait the two are
//! folded. The last visitor sends it straight home. `Travelling`, with the own contribution first:
//!
//! ```text
//! gradient of block 0:  rank 0 ─► rank 1 ─► rank 2 ─► rank 3 ─► rank 0      4 moves
//! ```
//!
//! `Reversed`, where the own contribution waits at home, so the first visitor begins the sum:
//!
//! ```text
//! gradient of block 0:            rank 3 ─► rank 2 ─► rank 1 ─► rank 0      3 moves
//! ```
//!
//! A ring stops at the farthest rank that any rank needs, the same for all: under a sliding window
//! over contiguous chunks that is a hop or two. `Reversed` then keeps the direction in which it is
//! nearer.

use super::Return;
use super::split::{Split, backward_tile, fold, forward_tile};
use crate::{Buffer, Hop};

/// Every rank, by rank, computes with its own block only, then with that of the rank before it, and
/// so on up to `reach` ranks before it.
pub(super) fn forward(split: &Split) -> Vec<Vec<Hop>> {
    let ring = Ring::upwards(split);
    let hops = |rank| (0..=ring.reach).map(|hop| ring.forward_hop(rank, hop)).collect();
    (0..split.world()).map(hops).collect()
}

pub(super) fn backward(split: &Split, how: Return) -> Vec<Vec<Hop>> {
    let (ring, begins) = match how {
        Return::Travelling => (Ring::upwards(split), 0),
        Return::Reversed => (Ring::nearer(split), 1),
    };
    let round = Round { ring, begins };
    let hops = |rank| (0..=round.last()).map(|hop| round.hop(rank, hop)).collect();
    (0..split.world()).map(hops).collect()
}

/// One way round.
#[derive(Clone, Copy, Debug)]
struct Ring<'a> {
    split: &'a Split,
    /// From a rank to the next: 1 upwards, `world - 1` downwards.
    step: usize,
    /// How many times keys and values move.
    reach: usize,
}

impl<'a> Ring<'a> {
    fn new(split: &'a Split, step: usize) -> Ring<'a> {
        let ring = Ring { split, step, reach: 0 };
        let needed = |hop: &usize| (0..split.world()).any(|r| split.needs(r, ring.owner(r, *hop)));
        let reach = (0..split.world()).rev().find(needed).unwrap_or(0);
        Ring { reach, ..ring }
    }
    fn upwards(split: &'a Split) -> Ring<'a> {
        Ring::new(split, 1)
    }
    /// Downwards, against the forward ring, unless that is the longer way.
    fn nearer(split: &'a Split) -> Ring<'a> {
        let (up, down) = (Ring::upwards(split), Ring::new(split, split.world() - 1));
        if up.reach < down.reach { up } else { down }
    }

    fn shifted(&self, rank: usize, hops: usize) -> usize {
        (rank + self.step * hops) % self.split.world()
    }
    fn next(&self, rank: usize) -> usize {
        self.shifted(rank, 1)
    }
    fn previous(&self, rank: usize) -> usize {
        self.owner(rank, 1)
    }
    /// Whose block is on `rank` at `hop`.
    fn owner(&self, rank: usize, hop: usize) -> usize {
        self.shifted(rank, self.split.world() - hop)
    }
    /// Where the block of `owner` is at `hop`.
    fn visitor(&self, owner: usize, hop: usize) -> usize {
        self.shifted(owner, hop)
    }

    /// The keys and values of a hop: the block at hand goes on while the one before it comes.
    fn key_values(&self, rank: usize, hop: usize) -> Hop {
        let mut plan = Hop::default();
        let block = |hop| Buffer::key_value(self.owner(rank, hop));
        if hop < self.reach {
            let (next, previous) = (self.next(rank), self.previous(rank));
            plan.sends.push(self.split.move_whole(block(hop), rank, next));
            plan.receives.push(self.split.move_whole(block(hop + 1), previous, rank));
        }
        // The own block is the caller's.
        if (1..=self.reach).contains(&hop) {
            plan.frees.push(block(hop));
        }
        plan
    }

    fn forward_hop(&self, rank: usize, hop: usize) -> Hop {
        let mut plan = self.key_values(rank, hop);
        let owner = self.owner(rank, hop);
        if self.split.needs(rank, owner) {
            plan.tiles.push(forward_tile(rank, owner));
        }
        plan
    }
}

/// A ring with gradients in its wake.
#[derive(Clone, Copy, Debug)]
struct Round<'a> {
    ring: Ring<'a>,
    /// The hop after which the travelling sum of a block exists: 0 at home, 1 on its first visitor.
    begins: usize,
}

impl Round<'_> {
    /// The last hop: where nothing travels, the only one; else the one that brings gradients home.
    fn last(&self) -> usize {
        if self.ring.reach == 0 { 0 } else { self.ring.reach + 1 }
    }

    fn hop(&self, rank: usize, hop: usize) -> Hop {
        let mut plan = self.ring.key_values(rank, hop);
        self.gradients(&mut plan, rank, hop);
        if hop <= self.ring.reach {
            self.visit(&mut plan, rank, hop);
        }
        // What never left joins what did.
        if self.begins > 0 && hop == self.last() {
            plan.folds.push(fold(rank));
        }
        plan
    }

    /// The contribution to the block at hand. The own one, and the one that a travelling sum begins
    /// with, are there even as zeros.
    fn visit(&self, plan: &mut Hop, rank: usize, hop: usize) {
        let owner = self.ring.owner(rank, hop);
        if hop <= self.begins || self.ring.split.needs(rank, owner) {
            plan.tiles.push(backward_tile(rank, owner));
            if hop >= self.begins {
                plan.folds.push(fold(owner));
            }
        }
    }

    /// The sums that travel in a hop: on to the next visitor, and in the end home.
    fn gradients(&self, plan: &mut Hop, rank: usize, hop: usize) {
        let Ring { split, reach, .. } = self.ring;
        if hop <= self.begins || reach == 0 {
            return;
        }
        let done = self.ring.owner(rank, hop - 1);
        let (arriving, from, to) = if hop <= reach {
            (self.ring.owner(rank, hop), self.ring.previous(rank), self.ring.next(rank))
        } else {
            (rank, self.ring.visitor(rank, reach), done)
        };
        plan.sends.push(split.move_whole(Buffer::gradient(done), rank, to));
        plan.receives.push(split.move_whole(Buffer::gradient(arriving), from, rank));
    }
}
