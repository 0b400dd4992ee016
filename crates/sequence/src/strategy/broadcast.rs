//! One rank after another sends its keys and values to everybody: the naive baseline.
//!
//! What one would write first, and what textbooks compare rings with; of matrix products it is
//! SUMMA (van de Geijn and Watts, 1997). A rank hands over as many bytes as in a ring, but all at
//! once while the others hand over none, so that its link is the slowest. Four ranks:
//!
//! ```text
//!          rank 0    rank 1    rank 2    rank 3
//! hop 0    tile 0    tile 1    tile 2    tile 3      while block 0 goes to everybody
//! hop 1              tile 0    tile 0    tile 0      while block 1 goes
//! hop 2    tile 1              tile 1    tile 1      while block 2 goes, gradients of 0 return
//! hop 3    tile 2    tile 2              tile 2      while block 3 goes, gradients of 1 return
//! hop 4    tile 3    tile 3    tile 3                while gradients of 2 return
//! hop 5                                              gradients of 3 return (backward)
//! ```

use super::split::Split;
use crate::{Collective, Generator, Hop, Part, Pass};

#[derive(Debug)]
pub(super) struct Broadcast {
    pub(super) split: Split,
    pub(super) pass: Pass,
}

impl Generator for Broadcast {
    fn world(&self) -> usize {
        self.split.world()
    }
    fn hops(&self, _rank: usize) -> usize {
        match self.pass {
            Pass::Forward => self.world() + 1,
            Pass::Backward => self.world() + 2,
        }
    }
    fn hop(&self, rank: usize, index: usize) -> Hop {
        let Broadcast { split, pass } = self;
        let (mut hop, world) = (Hop::default(), split.world());
        if index == 0 {
            tile(&mut hop, split, *pass, [rank, rank]);
        }
        if index < world {
            hop.collective = Some(Collective::Broadcast);
            bring(&mut hop, split, index, rank);
        }
        let owner = index.checked_sub(1).filter(|owner| *owner < world && *owner != rank);
        if let Some(owner) = owner {
            tile(&mut hop, split, *pass, [rank, owner]);
            hop.free(split.whole(Part::KeyValue, owner));
        }
        if index == world {
            hop.finish(split.whole(Part::Query, rank));
        }
        if let Some(owner) = index.checked_sub(2).filter(|_| *pass == Pass::Backward) {
            hop.collective = hop.collective.or(Some(Collective::ReduceScatter));
            take_home(&mut hop, split, owner, rank);
        }
        hop
    }
}

fn bring(hop: &mut Hop, split: &Split, owner: usize, rank: usize) {
    let block = split.whole(Part::KeyValue, owner);
    if rank == owner {
        split.others(rank).for_each(|to| hop.send(block, rank, to));
    } else {
        hop.receive(block, owner, rank);
    }
}

fn take_home(hop: &mut Hop, split: &Split, owner: usize, rank: usize) {
    let block = split.whole(Part::Gradient, owner);
    if rank == owner {
        split.others(rank).for_each(|from| hop.receive(block, from, rank));
    } else {
        hop.send(block, rank, owner);
    }
}

/// Adds a tile, or zeros: every rank contributes to every block.
fn tile(hop: &mut Hop, split: &Split, pass: Pass, [rank, owner]: [usize; 2]) {
    let keys = split.whole(Part::KeyValue, owner);
    split.meet(hop, pass, split.whole(Part::Query, rank), keys);
}
