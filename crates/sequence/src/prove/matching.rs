//! Checks that every send of a hop is received in that hop, once, in order.

use super::player::{Player, of_rank};
use super::{At, Flaw};
use crate::{Block, Move, Part, Schedule};

/// Checks the sends and receives of players that have started a hop.
pub(super) fn check(schedule: &Schedule, hop: usize, players: &[Player<'_>]) -> Result<(), Flaw> {
    for player in players {
        check_moves(schedule, hop, player)?;
        if player.hop.collective != players[0].hop.collective {
            let (rank, sent) = (player.group.first(), player.hop.sends.first());
            let block = sent.map(|sent| sent.block);
            let block = block.unwrap_or_else(|| schedule.whole(Part::KeyValue, rank));
            return Err(Flaw::NotCollective(At { rank, hop, block }));
        }
    }
    for player in players {
        for sent in player.hop.sends.chunk_by(|a, b| a.to == b.to) {
            for peer in peers(player, sent[0].to, players) {
                check_sent(schedule, hop, [player, peer], sent)?;
            }
        }
    }
    for player in players {
        for received in player.hop.receives.chunk_by(|a, b| a.from == b.from) {
            for peer in peers(player, received[0].from, players) {
                check_awaited(schedule, hop, [player, peer], received)?;
            }
        }
    }
    Ok(())
}

/// The players whose ranks have the relation to the ranks of `player` that `peer` has to its first.
fn peers<'p, 'a>(
    player: &Player<'a>,
    peer: usize,
    players: &'p [Player<'a>],
) -> Vec<&'p Player<'a>> {
    let (alike, stations) = (player.group.alike, &player.group.stations);
    let first = of_rank(players, peer);
    if first.group.stations.len() * alike.lanes == player.holder.schedule.world() {
        return vec![first];
    }
    let all = player.holder.schedule.world() / alike.lanes;
    let begin = peer / alike.lanes;
    let ahead = |station: usize| (station + all - begin) % all;
    let meets = |other: &&Player<'a>| {
        let theirs = &other.group.stations;
        other.group.lane == first.group.lane
            && (ahead(theirs.start) < stations.len() || std::ptr::eq(*other, first))
    };
    players.iter().filter(meets).collect()
}

/// Checks that what a player sends to a rank of another is received by all ranks of that.
fn check_sent(
    schedule: &Schedule,
    hop: usize,
    [player, peer]: [&Player<'_>; 2],
    sent: &[Move],
) -> Result<(), Flaw> {
    let (world, alike) = (schedule.world(), player.group.alike);
    let by = alike.shift(world, sent[0].to, peer.group.first());
    let sent: Vec<Move> = sent.iter().map(|sent| player.moved(*sent, by)).collect();
    let from = sent[0].from;
    let received = of_peer(&peer.hop.receives, |received| received.from, from);
    let differ = (0..sent.len().max(received.len())).find(|i| sent.get(*i) != received.get(*i));
    differ.map_or(Ok(()), |i| Err(mismatch(hop, &sent[i..], &received[i..])))
}

/// Checks that everything that a player awaits is sent.
fn check_awaited(
    schedule: &Schedule,
    hop: usize,
    [player, peer]: [&Player<'_>; 2],
    received: &[Move],
) -> Result<(), Flaw> {
    let (world, alike) = (schedule.world(), player.group.alike);
    let by = alike.shift(world, received[0].from, peer.group.first());
    let first = player.moved(received[0], by);
    if of_peer(&peer.hop.sends, |sent| sent.to, first.to).is_empty() {
        let at = At { rank: first.to, hop, block: first.block };
        return Err(Flaw::ReceiveUnmatched { at, from: first.from });
    }
    Ok(())
}

/// The moves of one peer, among moves sorted by peer.
fn of_peer(moves: &[Move], of: impl Fn(&Move) -> usize, peer: usize) -> &[Move] {
    let start = moves.partition_point(|moved| of(moved) < peer);
    let len = moves[start..].partition_point(|moved| of(moved) == peer);
    &moves[start..start + len]
}

fn check_moves(schedule: &Schedule, hop: usize, player: &Player<'_>) -> Result<(), Flaw> {
    let rank = player.group.first();
    let sends = player.hop.sends.iter().map(|sent| (sent, sent.from, sent.to));
    let receives =
        player.hop.receives.iter().map(|received| (received, received.to, received.from));
    for (moved, here, peer) in sends.chain(receives) {
        check_move(schedule, moved, At { rank, hop, block: moved.block }, [here, peer])?;
    }
    Ok(())
}

fn check_move(schedule: &Schedule, moved: &Move, at: At, ranks: [usize; 2]) -> Result<(), Flaw> {
    let [here, peer] = ranks;
    if here != at.rank || peer == here || peer >= schedule.world() {
        return Err(Flaw::WrongPeer(at));
    }
    let Block { part, owner, .. } = moved.block;
    let exists = owner < schedule.world() && !moved.block.is_empty();
    let in_time = moved.hops > 0 && at.hop.saturating_add(moved.hops) <= schedule.hops();
    if exists && schedule.whole(part, owner).contains(moved.block) && in_time {
        Ok(())
    } else {
        Err(Flaw::OutOfRange(at))
    }
}

/// The first difference between two lists of moves.
fn mismatch(hop: usize, sends: &[Move], receives: &[Move]) -> Flaw {
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
