//! Checks a schedule before anything runs, by playing it: every rank, hop by hop, with buffers that
//! remember only what is in them.
//!
//! No deadlock: all ranks make the same number of hops, in a hop everything is posted before
//! anything is awaited, and within a hop the sends from one rank to another are the receives of
//! that other from the first, in the same order. Then no wait depends on a later hop, and by
//! induction every hop ends.

mod flaw;
mod holder;
mod matching;

use crate::{Buffer, Collective, Coverage, Pass, Schedule};
pub use flaw::{At, Flaw};
use holder::{Arrival, Holder};

/// What was proved of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The most received [`crate::Part::KeyValue`] buffers that are alive at once, by rank: those
    /// at hand and those arriving. The own one is not counted, it is the caller's and outlives the
    /// pass.
    pub key_values: Vec<usize>,
    /// The most gradient buffers (travelling and contributions) that are alive at once, by rank:
    /// what is being sent counts until the hop's wait, what is arriving from its start.
    pub gradients: Vec<usize>,
    /// The most gradient buffers that a rank has made and that are alive anywhere, by rank: what it
    /// takes where ranks share memory and a buffer that is handed over stays where it is.
    pub made: Vec<usize>,
    /// Hops in which something moves.
    pub hops: usize,
}

/// No deadlock, every needed tile exactly once, every gradient home with every contribution, every
/// buffer freed.
///
/// # Errors
/// The first [`Flaw`] that is met.
pub fn prove(schedule: &Schedule) -> Result<Proof, Flaw> {
    check_shape(schedule)?;
    let mut holders: Vec<Holder> =
        (0..schedule.world()).map(|rank| Holder::new(schedule, rank)).collect();
    let mut moving = 0;
    let mut made = vec![0; schedule.world()];
    for hop in 0..schedule.hops() {
        matching::check(schedule, hop)?;
        play(schedule, hop, &mut holders, &mut made)?;
        moving += usize::from(schedule.ranks.iter().any(|hops| !hops[hop].sends.is_empty()));
    }
    check_end(schedule, &holders)?;
    Ok(Proof {
        key_values: holders.iter().map(|holder| holder.most_key_values).collect(),
        gradients: holders.iter().map(|holder| holder.most_gradients).collect(),
        made,
        hops: moving,
    })
}

/// Everybody deals as the layout says, and makes the same number of hops.
fn check_shape(schedule: &Schedule) -> Result<(), Flaw> {
    let (world, wanted) = (schedule.world(), schedule.hops());
    let tokens = schedule.positions.iter().map(crate::Positions::tokens).sum();
    if schedule.layout.multiple(world) == 0
        || schedule.layout.deal(tokens, world).as_ref() != Ok(&schedule.positions)
    {
        return Err(Flaw::NotDealt { tokens, world });
    }
    let lengths = schedule.ranks.iter().map(Vec::len).enumerate();
    for (rank, found) in lengths {
        if found != wanted {
            return Err(Flaw::UnevenHops { rank, found, wanted });
        }
    }
    Ok(())
}

fn play(
    schedule: &Schedule,
    hop: usize,
    holders: &mut [Holder],
    made: &mut [usize],
) -> Result<(), Flaw> {
    let mut arriving: Vec<Vec<Arrival>> = vec![Vec::new(); holders.len()];
    for holder in holders.iter_mut() {
        for (to, arrival) in holder.post(hop)? {
            arriving[to].push(arrival);
        }
    }
    for (holder, arrivals) in holders.iter_mut().zip(&arriving) {
        holder.compute(hop, arrivals)?;
    }
    // Between the tiles and the wait there is most of everything.
    let mut alive = vec![0; made.len()];
    let arriving_makers = arriving.iter().flatten().filter_map(Arrival::maker);
    let makers = holders.iter().flat_map(Holder::makers).chain(arriving_makers);
    makers.for_each(|maker| alive[maker] += 1);
    made.iter_mut().zip(alive).for_each(|(most, alive)| *most = alive.max(*most));
    for (holder, arrivals) in holders.iter_mut().zip(arriving) {
        match schedule.ranks[holder.rank][hop].collective {
            Some(Collective::ReduceScatter) => holder.sum(hop, arrivals)?,
            Some(Collective::AllGather) | None => holder.arrive(hop, arrivals)?,
        }
        holder.fold(hop)?;
        holder.free(hop)?;
    }
    Ok(())
}

/// All that had to be computed was, all gradients are whole and at home, and nothing else is left.
fn check_end(schedule: &Schedule, holders: &[Holder]) -> Result<(), Flaw> {
    let hop = schedule.hops();
    for holder in holders {
        for (owner, positions) in schedule.positions.iter().enumerate() {
            let own = &schedule.positions[holder.rank];
            let needed = schedule.mask.coverage_of(own, positions) != Coverage::Empty;
            if needed && !holder.computed[owner] {
                let buffer = Buffer::key_value(owner);
                return Err(Flaw::NotComputed(At { rank: holder.rank, hop, buffer }));
            }
        }
    }
    if schedule.pass == Pass::Backward {
        for home in holders {
            let at = At { rank: home.rank, hop, buffer: Buffer::gradient(home.rank) };
            let contributors = holders.iter().filter(|holder| holder.computed[home.rank]);
            if let Some(missing) = contributors.map(|h| h.rank).find(|from| !home.has_home(*from)) {
                return Err(Flaw::NotHome { at, from: missing });
            }
        }
    }
    holders.iter().try_for_each(Holder::check_left)
}
