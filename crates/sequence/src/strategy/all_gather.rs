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
use crate::{Block, Collective, Extent, Hop, Part, Pass};

/// `groups` divides the key/value heads.
pub(super) fn all_gather(split: &Split, pass: Pass, groups: usize) -> Vec<Vec<Hop>> {
    let gather = Gather { split, pass, groups };
    let hops = |rank| (0..=gather.last()).map(|hop| gather.hop(rank, hop)).collect();
    (0..split.world()).map(hops).collect()
}

#[derive(Clone, Copy, Debug)]
struct Gather<'a> {
    split: &'a Split,
    pass: Pass,
    groups: usize,
}

impl Gather<'_> {
    fn last(&self) -> usize {
        match self.pass {
            Pass::Forward => self.groups,
            Pass::Backward => self.groups + 1,
        }
    }

    fn hop(&self, rank: usize, hop: usize) -> Hop {
        let mut plan = Hop::default();
        if hop < self.groups {
            self.gather(&mut plan, rank, hop);
            self.tile(&mut plan, rank, hop, rank);
        }
        if let Some(group) = hop.checked_sub(1).filter(|group| *group < self.groups) {
            for owner in self.split.others(rank) {
                self.tile(&mut plan, rank, group, owner);
                plan.free(self.keys(Part::KeyValue, owner, group));
            }
            plan.finish(self.queries(rank, group));
        }
        if let Some(group) = hop.checked_sub(2).filter(|_| self.pass == Pass::Backward) {
            self.reduce(&mut plan, rank, group);
        }
        plan
    }

    fn gather(&self, plan: &mut Hop, rank: usize, group: usize) {
        plan.collective = Some(Collective::AllGather);
        for peer in self.split.others(rank) {
            plan.send(self.keys(Part::KeyValue, rank, group), rank, peer);
            plan.receive(self.keys(Part::KeyValue, peer, group), peer, rank);
        }
    }

    /// Every rank contributes to every block, zeros if need be: all take part in the sum.
    fn reduce(&self, plan: &mut Hop, rank: usize, group: usize) {
        // While groups are gathered it is more than this.
        plan.collective = plan.collective.or(Some(Collective::ReduceScatter));
        for peer in self.split.others(rank) {
            plan.send(self.keys(Part::Gradient, peer, group), rank, peer);
            plan.receive(self.keys(Part::Gradient, rank, group), peer, rank);
        }
    }

    fn tile(&self, plan: &mut Hop, rank: usize, group: usize, owner: usize) {
        let keys = self.keys(Part::KeyValue, owner, group);
        self.split.meet(plan, self.pass, self.queries(rank, group), keys);
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
