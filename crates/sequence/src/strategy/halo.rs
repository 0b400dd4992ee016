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

use super::split::Split;
use crate::{Block, Extent, Hop, Part, Pass};

pub(super) fn halo(split: &Split, pass: Pass) -> Vec<Vec<Hop>> {
    let halo = Halo::new(split, pass);
    let hops = |rank| (0..halo.hops()).map(|hop| halo.hop(rank, hop)).collect();
    (0..split.world()).map(hops).collect()
}

#[derive(Debug)]
struct Halo<'a> {
    split: &'a Split,
    pass: Pass,
    /// How far ahead of an owner those are who see its keys, one distance for each hop.
    distances: Vec<usize>,
    /// The rows that they see, by distance and owner.
    seen: Vec<Vec<Extent>>,
}

impl Halo<'_> {
    fn new(split: &Split, pass: Pass) -> Halo<'_> {
        let world = split.world();
        let needed = |distance: &usize| {
            (0..world).any(|owner| split.needs((owner + distance) % world, owner))
        };
        let distances: Vec<usize> = (1..world).filter(needed).collect();
        let seen = |distance: &usize| {
            (0..world).map(|owner| split.seen((owner + distance) % world, owner)).collect()
        };
        Halo { split, pass, seen: distances.iter().map(seen).collect(), distances }
    }
    fn hops(&self) -> usize {
        match (self.distances.len(), self.pass) {
            (0, _) => 1,
            (served, Pass::Forward) => served + 1,
            (served, Pass::Backward) => served + 2,
        }
    }

    fn hop(&self, rank: usize, hop: usize) -> Hop {
        let mut plan = Hop::default();
        if let Some((owner, visitor)) = self.peers(rank, Some(hop)) {
            plan.send(self.rows(Part::KeyValue, rank, hop), rank, visitor);
            plan.receive(self.rows(Part::KeyValue, owner, hop), owner, rank);
        }
        if hop == 0 {
            let [queries, keys] = [Part::Query, Part::KeyValue].map(|p| self.split.whole(p, rank));
            self.split.meet(&mut plan, self.pass, queries, keys);
        }
        if let Some((owner, _)) = self.peers(rank, hop.checked_sub(1)) {
            let keys = self.rows(Part::KeyValue, owner, hop - 1);
            plan.tile(self.split.whole(Part::Query, rank), keys);
            plan.free(keys);
        }
        if hop == self.distances.len() {
            plan.finish(self.split.whole(Part::Query, rank));
        }
        let home = hop.checked_sub(2).filter(|_| self.pass == Pass::Backward);
        if let Some((owner, visitor)) = self.peers(rank, home) {
            plan.send(self.rows(Part::Gradient, owner, hop - 2), rank, owner);
            plan.receive(self.rows(Part::Gradient, rank, hop - 2), visitor, rank);
        }
        plan
    }

    /// Whose keys come to `rank` in a hop, and where its own go, if the hop serves a distance.
    fn peers(&self, rank: usize, hop: Option<usize>) -> Option<(usize, usize)> {
        let (distance, world) = (self.distances.get(hop?)?, self.split.world());
        Some(((rank + world - distance) % world, (rank + distance) % world))
    }

    /// The rows of `owner` that are seen at the distance of a hop.
    fn rows(&self, part: Part, owner: usize, hop: usize) -> Block {
        Block { rows: self.seen[hop][owner], ..self.split.whole(part, owner) }
    }
}
