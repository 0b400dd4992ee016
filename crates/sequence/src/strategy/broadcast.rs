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
//! hop 2    tile 1              tile 1    tile 1      while block 2 goes, gradients of 0 come home
//! hop 3    tile 2    tile 2              tile 2      while block 3 goes, gradients of 1 come home
//! hop 4    tile 3    tile 3    tile 3                while gradients of 2 come home
//! hop 5                                              gradients of 3 come home (backward)
//! ```

use super::split::Split;
use crate::{Collective, Hop, Part, Pass};

pub(super) fn broadcast(split: &Split, pass: Pass) -> Vec<Vec<Hop>> {
    let last = match pass {
        Pass::Forward => split.world(),
        Pass::Backward => split.world() + 1,
    };
    let hops = |rank| (0..=last).map(|hop| plan(split, pass, rank, hop)).collect();
    (0..split.world()).map(hops).collect()
}

fn plan(split: &Split, pass: Pass, rank: usize, hop: usize) -> Hop {
    let (mut plan, world) = (Hop::default(), split.world());
    if hop == 0 {
        tile(&mut plan, split, pass, [rank, rank]);
    }
    if hop < world {
        plan.collective = Some(Collective::Broadcast);
        bring(&mut plan, split, hop, rank);
    }
    if let Some(owner) = hop.checked_sub(1).filter(|owner| *owner < world && *owner != rank) {
        tile(&mut plan, split, pass, [rank, owner]);
        plan.free(split.whole(Part::KeyValue, owner));
    }
    if hop == world {
        plan.finish(split.whole(Part::Query, rank));
    }
    if let Some(owner) = hop.checked_sub(2).filter(|_| pass == Pass::Backward) {
        plan.collective = plan.collective.or(Some(Collective::ReduceScatter));
        take_home(&mut plan, split, owner, rank);
    }
    plan
}

fn bring(plan: &mut Hop, split: &Split, owner: usize, rank: usize) {
    let block = split.whole(Part::KeyValue, owner);
    if rank == owner {
        split.others(rank).for_each(|to| plan.send(block, rank, to));
    } else {
        plan.receive(block, owner, rank);
    }
}

fn take_home(plan: &mut Hop, split: &Split, owner: usize, rank: usize) {
    let block = split.whole(Part::Gradient, owner);
    if rank == owner {
        split.others(rank).for_each(|from| plan.receive(block, from, rank));
    } else {
        plan.send(block, rank, owner);
    }
}

/// Every rank contributes to every block, zeros if need be.
fn tile(plan: &mut Hop, split: &Split, pass: Pass, [rank, owner]: [usize; 2]) {
    let keys = split.whole(Part::KeyValue, owner);
    split.meet(plan, pass, split.whole(Part::Query, rank), keys);
}
