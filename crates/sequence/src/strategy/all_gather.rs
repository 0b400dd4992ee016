//! Every rank gathers all keys and values, some heads at a time.
//!
//! What Llama 3 does (arXiv 2407.21783, section 3.3.2); ring-flash-attention gathers few heads at a
//! time to bound the memory. Four ranks, one group of heads:
//!
//! ```text
//!          rank 0      rank 1      rank 2      rank 3
//! hop 0    tile 0      tile 1      tile 2      tile 3      while all blocks go to everybody
//! hop 1    tiles 1 2 3 tiles 0 2 3 tiles 0 1 3 tiles 0 1 2 those that are needed
//! hop 2    gradients of every block are summed at its owner (backward)
//! ```
//!
//! With more groups, a hop gathers the next group while it computes with the last and sends home
//! the gradients of the one before. No gathered block is freed before the last tile of its group,
//! so memory grows with the number of ranks.

use super::split::Split;
use crate::{Alike, Block, Collective, Extent, Generator, Hop, Part, Pass};

/// One pass of `all-gather`; `groups` divides the KV heads.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) split: Split,
    pub(super) pass: Pass,
    pub(super) groups: usize,
}

impl Generator for Gather {
    fn world(&self) -> usize {
        self.split.world()
    }
    fn hops(&self, _rank: usize) -> usize {
        match self.pass {
            Pass::Forward => self.groups + 1,
            Pass::Backward => self.groups + 2,
        }
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        let mut hop = Hop::default();
        if index < self.groups {
            self.gather(&mut hop, rank, index);
            self.tile(&mut hop, rank, index, rank);
        }
        if let Some(group) = index.checked_sub(1).filter(|group| *group < self.groups) {
            for owner in self.split.others(rank) {
                self.tile(&mut hop, rank, group, owner);
                hop.free(self.keys(Part::KeyValue, owner, group));
            }
            hop.finish(self.queries(rank, group));
        }
        if let Some(group) = index.checked_sub(2).filter(|_| self.pass == Pass::Backward) {
            self.reduce(&mut hop, rank, group);
        }
        hop
    }
    /// Ranks are alike only where every rank sees everything of all others.
    fn alike(&self) -> Option<Alike> {
        let all = self.split.is_even() && self.split.needs_all();
        all.then_some(Alike { lanes: 1, rotates_lanes: false })
    }
}

impl Gather {
    fn gather(&self, hop: &mut Hop, rank: usize, group: usize) {
        hop.collective = Some(Collective::AllGather);
        for peer in self.split.others(rank) {
            hop.send(self.keys(Part::KeyValue, rank, group), rank, peer);
            hop.receive(self.keys(Part::KeyValue, peer, group), peer, rank);
        }
    }

    /// Sums every block's gradient at its owner: all ranks contribute, zeros if need be.
    fn reduce(&self, hop: &mut Hop, rank: usize, group: usize) {
        // While groups are gathered, the moves are more than this collective.
        hop.collective = hop.collective.or(Some(Collective::ReduceScatter));
        for peer in self.split.others(rank) {
            hop.send(self.keys(Part::Gradient, peer, group), rank, peer);
            hop.receive(self.keys(Part::Gradient, rank, group), peer, rank);
        }
    }

    fn tile(&self, hop: &mut Hop, rank: usize, group: usize, owner: usize) {
        let keys = self.keys(Part::KeyValue, owner, group);
        self.split.meet(hop, self.pass, self.queries(rank, group), keys);
    }

    fn keys(&self, part: Part, owner: usize, group: usize) -> Block {
        self.split.heads_of(part, owner, self.heads(self.split.heads.key_value, group))
    }
    fn queries(&self, rank: usize, group: usize) -> Block {
        self.split.heads_of(Part::Query, rank, self.heads(self.split.heads.query, group))
    }
    fn heads(&self, all: usize, group: usize) -> Extent {
        let heads = all / self.groups;
        Extent { start: group * heads, end: (group + 1) * heads }
    }
}
