//! Owners send exactly the rows that others see, straight to them: for windows.
//!
//! Under a sliding window (Longformer, arXiv 2004.05150; Mistral 7B, arXiv 2310.06825) a rank of
//! contiguous chunks sees the end of the chunk before its own, one of zigzag chunks also the
//! beginning of the one after (the halo exchange that Megatron calls `swa_p2p`). Four ranks,
//! contiguous chunks, a window shorter than a chunk:
//!
//! ```text
//!          rank 0        rank 1        rank 2        rank 3
//! hop 0    tile 0  ┄►    tile 1  ┄►    tile 2  ┄►    tile 3        ┄► the last rows alone
//! hop 1                  tile 0┄       tile 1┄       tile 2┄
//! hop 2    g 0 ◄┄        g 1 ◄┄        g 2 ◄┄                      backward: their gradients
//! ```
//!
//! A hop serves one distance between ranks. Under a mask that shows everything these are as many
//! bytes as a ring's, but over longer links.

use std::sync::OnceLock;

use super::split::Split;
use crate::{Alike, Block, Extent, Generator, Hop, Part, Pass};

#[derive(Debug)]
pub(super) struct Halo {
    split: Split,
    pass: Pass,
    /// The distances from an owner to the ranks that see its keys, one for each hop.
    distances: Vec<usize>,
    /// For each hop, the rows of every owner that are seen, once they have been compared.
    seen: Vec<OnceLock<Vec<Extent>>>,
}

/// The most pairs of owner and distance that are compared for symmetry.
const COMPARED: usize = 1 << 20;

impl Generator for Halo {
    fn world(&self) -> usize {
        self.split.world()
    }
    fn hops(&self, _rank: usize) -> usize {
        match (self.distances.len(), self.pass) {
            (0, _) => 1,
            (served, Pass::Forward) => served + 1,
            (served, Pass::Backward) => served + 2,
        }
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        let mut hop = Hop::default();
        if let Some((owner, visitor)) = self.peers(rank, Some(index)) {
            hop.send(self.rows(Part::KeyValue, rank, index), rank, visitor);
            hop.receive(self.rows(Part::KeyValue, owner, index), owner, rank);
        }
        if index == 0 {
            let [queries, keys] = [Part::Query, Part::KeyValue].map(|p| self.split.whole(p, rank));
            self.split.meet(&mut hop, self.pass, queries, keys);
        }
        if let Some((owner, _)) = self.peers(rank, index.checked_sub(1)) {
            let keys = self.rows(Part::KeyValue, owner, index - 1);
            hop.tile(self.split.whole(Part::Query, rank), keys);
            hop.free(keys);
        }
        if index == self.distances.len() {
            hop.finish(self.split.whole(Part::Query, rank));
        }
        let home = index.checked_sub(2).filter(|_| self.pass == Pass::Backward);
        if let Some((owner, visitor)) = self.peers(rank, home) {
            hop.send(self.rows(Part::Gradient, owner, index - 2), rank, owner);
            hop.receive(self.rows(Part::Gradient, rank, index - 2), visitor, rank);
        }
        hop
    }
    fn alike(&self) -> Option<Alike> {
        (self.is_compared() && self.split.is_even())
            .then_some(Alike { lanes: 1, rotates_lanes: false })
    }
    /// The stations at which other rows are seen of a rank, or by it.
    fn borders(&self, index: usize) -> Vec<usize> {
        let served = (index.saturating_sub(2)..=index).filter(|hop| *hop < self.distances.len());
        let served: Vec<usize> = served.collect();
        let rows = |owner, hop| self.rows(Part::KeyValue, owner, hop).rows;
        let seen = |rank: usize, hop: usize| {
            let (owner, _) = self.peers(rank, Some(hop)).unwrap_or((rank, rank));
            [rows(rank, hop), rows(owner, hop)]
        };
        // Whether own keys are seen matters in the first hop.
        let sees = |rank: usize| self.split.needs(rank, rank);
        let differs = |rank: &usize| {
            let [one, other] = [*rank, rank - 1];
            let own = index == 0 && sees(one) != sees(other);
            own || served.iter().any(|hop| seen(one, *hop) != seen(other, *hop))
        };
        (1..self.world()).filter(differs).collect()
    }
}

impl Halo {
    pub(super) fn new(split: &Split, pass: Pass) -> Halo {
        let world = split.world();
        let needed = |distance: &usize| {
            (0..world).any(|owner| split.needs((owner + distance) % world, owner))
        };
        let distances: Vec<usize> = (1..world).filter(needed).collect();
        let seen = distances.iter().map(|_| OnceLock::new()).collect();
        Halo { split: split.clone(), pass, distances, seen }
    }

    /// Whether ranks are few enough to be compared.
    fn is_compared(&self) -> bool {
        self.distances.len() * self.world() <= COMPARED
    }

    /// The rank whose keys arrive at `rank` in a hop, and the one that its own go to, if the hop serves a distance.
    fn peers(&self, rank: usize, hop: Option<usize>) -> Option<(usize, usize)> {
        let (distance, world) = (self.distances.get(hop?)?, self.split.world());
        Some(((rank + world - distance) % world, (rank + distance) % world))
    }

    /// The rows of `owner` that are seen at the distance of a hop.
    fn rows(&self, part: Part, owner: usize, hop: usize) -> Block {
        let of = |owner| self.split.seen((owner + self.distances[hop]) % self.world(), owner);
        let all = || self.seen[hop].get_or_init(|| (0..self.world()).map(of).collect());
        let rows = if self.is_compared() { all()[owner] } else { of(owner) };
        Block { rows, ..self.split.whole(part, owner) }
    }
}
