//! Keys travel round while every rank keeps the scores of its queries, then values travel round and are weighted with them: the baseline
//! that Ring Attention replaced.
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
use crate::{Alike, Generator, Hop, Part};

/// Two rounds of a ring: of keys, then of values.
#[derive(Debug)]
pub(super) struct Rounds {
    split: Split,
    /// The number of moves in each round: to the farthest rank that needs a block.
    reach: usize,
}

impl Rounds {
    pub(super) fn new(split: &Split) -> Rounds {
        let rounds = Rounds { split: split.clone(), reach: 0 };
        let ranks = || (0..split.world()).rev();
        let needed = |hop: &usize| ranks().any(|rank| split.needs(rank, rounds.before(rank, *hop)));
        let reach = ranks().find(needed).unwrap_or(0);
        Rounds { reach, ..rounds }
    }
    /// The rank `places` places before another.
    fn before(&self, rank: usize, places: usize) -> usize {
        (rank + self.world() - places) % self.world()
    }
    /// The part that travels in a hop, and the number of the hop in its round.
    fn round(&self, index: usize) -> (Part, usize) {
        let round = self.reach + 1;
        (if index < round { Part::Key } else { Part::Value }, index % round)
    }
}

impl Generator for Rounds {
    fn world(&self) -> usize {
        self.split.world()
    }
    fn hops(&self, _rank: usize) -> usize {
        2 * (self.reach + 1)
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        let (split, (part, round)) = (&self.split, self.round(index));
        let (mut hop, owner) = (Hop::default(), self.before(rank, round));
        let block = |owner| split.whole(part, owner);
        if round < self.reach {
            let (next, previous) = ((rank + 1) % split.world(), self.before(rank, 1));
            hop.send(block(owner), rank, next);
            hop.receive(block(self.before(rank, round + 1)), previous, rank);
        }
        if split.needs(rank, owner) {
            hop.tile(split.whole(Part::Query, rank), block(owner));
        }
        if owner != rank {
            hop.free(block(owner));
        }
        if part == Part::Value && round == self.reach {
            hop.finish(split.whole(Part::Query, rank));
        }
        hop
    }
    /// Ranks are alike only where each scores everything: else they keep different numbers of scores.
    fn alike(&self) -> Option<Alike> {
        let all = self.split.is_even() && self.split.needs_all();
        all.then_some(Alike { lanes: 1, rotates_lanes: false })
    }
}
