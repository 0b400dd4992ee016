//! Keys go round while every rank keeps the scores of its queries, then values go round and are
//! weighed with them: the baseline that Ring Attention came to replace.
//!
//! Ring self-attention (Li et al., arXiv 2105.13120) takes a softmax as a textbook writes it, over
//! whole rows. So a rank holds its rows of the whole matrix of scores, heads times n²/P of them,
//! where a running maximum and sum need none. Bytes on the wire are a ring's. Four ranks; a number
//! is the owner of the block at hand:
//!
//! ```text
//!          rank 0    rank 1    rank 2    rank 3
//! hop 0    keys 0 ─► keys 1 ─► keys 2 ─► keys 3 ─►    to rank 0; scored and kept
//! hop 1    keys 3 ─► keys 0 ─► keys 1 ─► keys 2 ─►
//! hop 2    keys 2 ─► keys 3 ─► keys 0 ─► keys 1 ─►
//! hop 3    keys 1    keys 2    keys 3    keys 0       whole rows: their softmax
//! hop 4    vals 0 ─► vals 1 ─► vals 2 ─► vals 3 ─►    weighed and added
//!  ..
//! hop 7    vals 1    vals 2    vals 3    vals 0
//! ```
//!
//! Scores do not outlive the pass: backward makes them again from the log-sum-exp, as a ring's own
//! backward does, and is that. Rounds stop where a ring does.

use super::split::Split;
use crate::{Hop, Part};

pub(super) fn forward(split: &Split) -> Vec<Vec<Hop>> {
    let round = Round { split, reach: reach(split) };
    let hops = |rank| round.of(Part::Key, rank).chain(round.of(Part::Value, rank)).collect();
    (0..split.world()).map(hops).collect()
}

/// How many times blocks move on: to the farthest rank that needs one.
fn reach(split: &Split) -> usize {
    let ranks = || 0..split.world();
    let needed = |hop: &usize| ranks().any(|rank| split.needs(rank, before(split, rank, *hop)));
    ranks().rev().find(needed).unwrap_or(0)
}

/// The rank so many places before another.
fn before(split: &Split, rank: usize, places: usize) -> usize {
    (rank + split.world() - places) % split.world()
}

/// Blocks of one part on their way round.
#[derive(Clone, Copy, Debug)]
struct Round<'a> {
    split: &'a Split,
    reach: usize,
}

impl<'a> Round<'a> {
    fn of(self, part: Part, rank: usize) -> impl Iterator<Item = Hop> + use<'a> {
        (0..=self.reach).map(move |hop| self.hop(part, rank, hop))
    }

    fn hop(self, part: Part, rank: usize, hop: usize) -> Hop {
        let Round { split, reach } = self;
        let (mut plan, owner) = (Hop::default(), before(split, rank, hop));
        let block = |owner| split.whole(part, owner);
        if hop < reach {
            let (next, previous) = ((rank + 1) % split.world(), before(split, rank, 1));
            plan.send(block(owner), rank, next);
            plan.receive(block(before(split, rank, hop + 1)), previous, rank);
        }
        if split.needs(rank, owner) {
            plan.tile(split.whole(Part::Query, rank), block(owner));
        }
        if owner != rank {
            plan.free(block(owner));
        }
        if part == Part::Value && hop == reach {
            plan.finish(split.whole(Part::Query, rank));
        }
        plan
    }
}
