//! The double ring: rings inside nodes, and a ring of nodes around them.
//!
//! LoongTrain (arXiv 2406.18485) and BurstAttention (arXiv 2403.09347): links inside a node are fast, those between nodes slow, so a block
//! is sent once to every node and then travels round inside it. The slow move is posted with the first hop of a node's round and awaited
//! with its last. Four ranks, two nodes of two:
//!
//! ```text
//!          rank 0    rank 1    rank 2    rank 3
//! hop 0    tile 0 ─► tile 1 ─► tile 2 ─► tile 3 ─►    inside; 0 1 set out for 2 3 and 2 3 for 0 1
//! hop 1    tile 1    tile 0    tile 3    tile 2       and arrive
//! hop 2    tile 2 ─► tile 3 ─► tile 0 ─► tile 1 ─►    inside
//! hop 3    tile 3    tile 2    tile 1    tile 0
//! ```
//!
//! Backward, every node makes a sum of its own: it travels round inside the node one hop behind its block, back to where the block entered.
//! There it meets the sum of the nodes before, which has had a whole round to arrive, and the two go on to the next node, finally to the
//! owner. `Travelling` sums begin with the part of the rank where the block is first; `Reversed` ones wait for it there, inside a node as
//! at the owner, which saves a hop each.

use super::Route;
use super::split::Split;
use crate::schedule::push;
use crate::{Alike, Block, Generator, Hop, Move, Part, Pass};

#[derive(Debug)]
pub(super) struct Rings {
    split: Split,
    pass: Pass,
    /// The number of ranks per node, at least two.
    inside: usize,
    /// The number of nodes that a block visits, its own included.
    visits: usize,
    /// Backward: the visit that begins a travelling sum, 0 at the owner and its node, 1 at the next.
    begins: usize,
}

impl Generator for Rings {
    fn world(&self) -> usize {
        self.split.world()
    }
    fn hops(&self, _rank: usize) -> usize {
        let rounds = self.visits * self.inside;
        match self.pass {
            Pass::Forward => rounds,
            Pass::Backward => rounds + 1 + usize::from(self.visits > 1),
        }
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        let (mut todo, visit, round) = (Hop::default(), index / self.inside, index % self.inside);
        if visit < self.visits {
            self.travel(&mut todo, rank, visit, round);
            self.tile(&mut todo, rank, visit, round);
        }
        if index + 1 == self.visits * self.inside {
            todo.finish(self.split.whole(Part::Query, rank));
        }
        if self.pass == Pass::Backward && index > 0 {
            self.inner_sums(&mut todo, rank, index);
            self.outer_sums(&mut todo, rank, index);
        }
        todo
    }
    fn alike(&self) -> Option<Alike> {
        let rotates_lanes = self.split.needs_all();
        self.split.is_even().then_some(Alike { lanes: self.inside, rotates_lanes })
    }
    fn borders(&self, index: usize) -> Vec<usize> {
        let (visit, round) = (index / self.inside, index % self.inside);
        if visit >= self.visits || self.split.needs_all() {
            return Vec::new();
        }
        let sees = |rank: usize| self.split.needs(rank, self.owner(rank, visit, round));
        let differs = |rank: usize| sees(rank) != sees(rank - self.inside);
        let of_node = |node: &usize| (0..self.inside).any(|i| differs(node * self.inside + i));
        (1..self.split.world() / self.inside).filter(of_node).collect()
    }
}

impl Rings {
    /// The double ring of a pass; `route` says how sums travel backward.
    pub(super) fn new(split: &Split, inside: usize, pass: Pass, route: Route) -> Rings {
        let begins = usize::from(route != Route::Travelling);
        let rings = Rings { split: split.clone(), pass, inside, visits: 1, begins };
        let needed = |visit: &usize| {
            let sees =
                |rank| (0..inside).any(|hop| split.needs(rank, rings.owner(rank, *visit, hop)));
            (0..split.world()).any(sees)
        };
        let visits = (0..split.world() / inside).rev().find(needed).unwrap_or(0) + 1;
        Rings { visits, ..rings }
    }

    /// The rank `nodes` nodes and `ranks` ranks ahead.
    fn shifted(&self, rank: usize, nodes: usize, ranks: usize) -> usize {
        let (node, place) = (rank / self.inside, rank % self.inside);
        let all = self.split.world() / self.inside;
        (node + nodes) % all * self.inside + (place + ranks) % self.inside
    }
    /// The rank `nodes` nodes and `ranks` ranks behind.
    fn owner(&self, rank: usize, nodes: usize, ranks: usize) -> usize {
        let all = self.split.world() / self.inside;
        self.shifted(rank, all - nodes % all, self.inside - ranks % self.inside)
    }

    /// Sends keys and values on: inside a node in every hop, between nodes once per visit.
    fn travel(&self, todo: &mut Hop, rank: usize, visit: usize, round: usize) {
        let block = |visit, round| self.split.whole(Part::KeyValue, self.owner(rank, visit, round));
        if round + 1 < self.inside {
            todo.send(block(visit, round), rank, self.shifted(rank, 0, 1));
            todo.receive(block(visit, round + 1), self.owner(rank, 0, 1), rank);
        }
        let goes_on = visit + 1 < self.visits;
        if round == 0 && goes_on {
            let (to, from) = (self.shifted(rank, 1, 0), self.owner(rank, 1, 0));
            let outer = |block, from, to| Move { block, from, to, hops: self.inside };
            push(&mut todo.sends, outer(block(visit, 0), rank, to));
            push(&mut todo.receives, outer(block(visit + 1, 0), from, rank));
        }
        // What goes on to the next node stays until it has arrived.
        let entered = block(visit, 0);
        if round > 0 {
            todo.free(block(visit, round));
        }
        let done = if goes_on { round + 1 == self.inside } else { round == 0 };
        if done && entered.owner != rank {
            todo.free(entered);
        }
    }

    fn tile(&self, todo: &mut Hop, rank: usize, visit: usize, round: usize) {
        let owner = self.owner(rank, visit, round);
        // A sum that travels already needs no zeros.
        if self.split.needs(rank, owner) || round <= self.begins {
            let [queries, keys] = [(Part::Query, rank), (Part::KeyValue, owner)]
                .map(|(part, owner)| self.split.whole(part, owner));
            self.split.meet(todo, self.pass, queries, keys);
        }
    }

    /// Sends the sum of a node to its next rank, and back to where its block entered.
    fn inner_sums(&self, todo: &mut Hop, rank: usize, hop: usize) {
        let (visit, done) = ((hop - 1) / self.inside, (hop - 1) % self.inside);
        if visit >= self.visits || done < self.begins {
            return;
        }
        let next = (done + 1) % self.inside;
        todo.send(self.gradient(self.owner(rank, visit, done)), rank, self.shifted(rank, 0, 1));
        let arriving = self.gradient(self.owner(rank, visit, next));
        todo.receive(arriving, self.owner(rank, 0, 1), rank);
    }

    /// Sends the sum over all nodes so far on, once the node's own has come back.
    fn outer_sums(&self, todo: &mut Hop, rank: usize, hop: usize) {
        let Some(since) = hop.checked_sub(self.inside + 1) else { return };
        let (visit, round) = (since / self.inside, since % self.inside);
        if round > 0 || visit < self.begins || visit >= self.visits || self.visits == 1 {
            return;
        }
        let sum = self.gradient(self.owner(rank, visit, 0));
        let (to, from, arriving, hops) = if visit + 1 < self.visits {
            let arriving = self.gradient(self.owner(rank, visit + 1, 0));
            (self.shifted(rank, 1, 0), self.owner(rank, 1, 0), arriving, self.inside)
        } else {
            let from = self.shifted(rank, visit, 0);
            (sum.owner, from, self.gradient(rank), 1)
        };
        push(&mut todo.sends, Move { block: sum, from: rank, to, hops });
        push(&mut todo.receives, Move { block: arriving, from, to: rank, hops });
    }

    fn gradient(&self, owner: usize) -> Block {
        self.split.whole(Part::Gradient, owner)
    }
}
