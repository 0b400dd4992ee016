//! Every send of a hop is received in that hop, once, in order.

use super::{At, Flaw};
use crate::{Block, Move, Part, Schedule};

pub(super) fn check(schedule: &Schedule, hop: usize) -> Result<(), Flaw> {
    let hops = || schedule.ranks.iter().map(|hops| &hops[hop]).enumerate();
    for (rank, plan) in hops() {
        let sends = plan.sends.iter().map(|sent| (sent, sent.from, sent.to));
        let receives = plan.receives.iter().map(|received| (received, received.to, received.from));
        for (moved, here, peer) in sends.chain(receives) {
            check_move(schedule, moved, At { rank, hop, block: moved.block }, [here, peer])?;
        }
        if plan.collective != schedule.ranks[0][hop].collective {
            let sent = plan.sends.first().map(|sent| sent.block);
            let block = sent.unwrap_or_else(|| schedule.whole(Part::KeyValue, rank));
            return Err(Flaw::NotCollective(At { rank, hop, block }));
        }
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
    let Block { part, owner, .. } = moved.block;
    let exists = owner < schedule.world() && !moved.block.is_empty();
    let in_time = moved.hops > 0 && at.hop + moved.hops <= schedule.hops();
    if exists && schedule.whole(part, owner).contains(moved.block) && in_time {
        Ok(())
    } else {
        Err(Flaw::OutOfRange(at))
    }
}

/// What differs first, where the lists before were the same.
fn mismatch(hop: usize, sends: &[&Move], receives: &[&Move]) -> Flaw {
    let sent_at = |sent: &Move| At { rank: sent.from, hop, block: sent.block };
    let received_at = |received: &Move| At { rank: received.to, hop, block: received.block };
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
