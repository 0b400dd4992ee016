//! Every send of a hop is received in that hop, once, in order.

use super::{At, Flaw};
use crate::{Buffer, Collective, Hop, Move, Part, Schedule};

pub(super) fn check(schedule: &Schedule, hop: usize) -> Result<(), Flaw> {
    let hops = || schedule.ranks.iter().map(|hops| &hops[hop]).enumerate();
    for (rank, plan) in hops() {
        let sends = plan.sends.iter().map(|sent| (sent, sent.from, sent.to));
        let receives = plan.receives.iter().map(|received| (received, received.to, received.from));
        for (moved, here, peer) in sends.chain(receives) {
            check_move(schedule, moved, At { rank, hop, buffer: moved.buffer }, [here, peer])?;
        }
        check_collective(schedule, plan, rank, hop)?;
    }
    let mut sends: Vec<&Move> = hops().flat_map(|(_, plan)| &plan.sends).collect();
    let mut receives: Vec<&Move> = hops().flat_map(|(_, plan)| &plan.receives).collect();
    // Stable: what moves between the same two ranks stays in its order.
    sends.sort_by_key(|sent| (sent.from, sent.to));
    receives.sort_by_key(|received| (received.from, received.to));
    let differ = (0..sends.len().max(receives.len())).find(|&i| sends.get(i) != receives.get(i));
    differ.map_or(Ok(()), |i| Err(mismatch(hop, &sends[i..], &receives[i..])))
}

fn check_move(schedule: &Schedule, moved: &Move, at: At, ranks: [usize; 2]) -> Result<(), Flaw> {
    let [here, peer] = ranks;
    if here != at.rank || peer == here || peer >= schedule.world() {
        return Err(Flaw::WrongPeer(at));
    }
    let rows = schedule.positions.get(moved.buffer.owner).map_or(0, crate::Positions::tokens);
    let within = |range: &std::ops::Range<usize>, all| !range.is_empty() && range.end <= all;
    if within(&moved.rows, rows) && within(&moved.heads, schedule.heads) {
        Ok(())
    } else {
        Err(Flaw::OutOfRange(at))
    }
}

/// What differs first, where the lists before were the same.
fn mismatch(hop: usize, sends: &[&Move], receives: &[&Move]) -> Flaw {
    let sent_at = |sent: &Move| At { rank: sent.from, hop, buffer: sent.buffer };
    let received_at = |received: &Move| At { rank: received.to, hop, buffer: received.buffer };
    match (sends.first(), receives.first()) {
        (Some(sent), Some(received)) if receives.contains(sent) && sends.contains(received) => {
            Flaw::OutOfOrder { at: sent_at(sent), to: sent.to }
        }
        (Some(sent), _) if !receives.contains(sent) => {
            Flaw::SendUnmatched { at: sent_at(sent), to: sent.to }
        }
        (_, Some(received)) => {
            Flaw::ReceiveUnmatched { at: received_at(received), from: received.from }
        }
        (_, None) => unreachable!("lists of equal length that do not differ"),
    }
}

/// A named collective is joined by all, and its moves are all of those that the name stands for.
fn check_collective(schedule: &Schedule, plan: &Hop, rank: usize, hop: usize) -> Result<(), Flaw> {
    let same = plan.collective == schedule.ranks[0][hop].collective;
    let whole = plan.collective.is_none_or(|collective| {
        let [sends, receives] = moves_of(schedule, collective, rank);
        plan.sends == sends && plan.receives == receives
    });
    if same && whole {
        return Ok(());
    }
    let buffer = plan.sends.first().map_or(Buffer::key_value(rank), |sent| sent.buffer);
    Err(Flaw::NotCollective(At { rank, hop, buffer }))
}

fn moves_of(schedule: &Schedule, collective: Collective, rank: usize) -> [Vec<Move>; 2] {
    let whole = |from: usize, to: usize| {
        let (part, owner) = match collective {
            Collective::AllGather => (Part::KeyValue, from),
            Collective::ReduceScatter => (Part::Contribution, to),
        };
        let rows = 0..schedule.positions[owner].tokens();
        Move { buffer: Buffer { part, owner }, heads: 0..schedule.heads, rows, from, to }
    };
    let others = || (0..schedule.world()).filter(|other| *other != rank);
    [others().map(|to| whole(rank, to)).collect(), others().map(|from| whole(from, rank)).collect()]
}
