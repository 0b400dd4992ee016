//! Every schedule, damaged everywhere: the six flaws that a proof is there for, and some more.

use annulus_sequence::{
    Block, Exchange, Hop, Mask, Move, Split, Strategy, StrategyError, TilePlan,
};

use super::{Edit, HEADS, Listed, NODES, USP, WORLD};

/// Every strategy, exchange and shape, forward and every way backward, where positions are sharded
/// evenly and where they are not.
fn all() -> Vec<(String, Listed)> {
    let exchanges = Exchange::ALL.map(|exchange| Strategy::Megatron { exchange });
    let more = [USP, NODES, Strategy::Striped { width: 3 }, Strategy::AllGather { groups: 2 }];
    let mut strategies: Vec<Strategy> = Strategy::ALL.into_iter().skip(1).collect();
    strategies.extend(exchanges.into_iter().skip(1).chain(more));
    let cases = [(Mask::causal(), 32), (Mask::full(), 31)];
    let of = |strategy: Strategy| {
        cases.clone().into_iter().flat_map(move |(mask, tokens)| {
            let split = strategy.split(&mask, tokens, WORLD, HEADS).expect("it splits");
            passes(strategy, &split).expect("every strategy runs on 4 ranks")
        })
    };
    strategies.into_iter().flat_map(of).collect()
}

fn passes(strategy: Strategy, split: &Split) -> Result<Vec<(String, Listed)>, StrategyError> {
    let forward =
        strategy.forward(split).map(|schedule| (format!("{strategy:?}"), Listed::new(schedule)));
    let backward = strategy.routes().iter().map(|how| {
        let schedule = strategy.backward(split, *how)?;
        Ok((format!("{strategy:?} {how:?}"), Listed::new(schedule)))
    });
    [forward].into_iter().chain(backward).collect()
}

/// A schedule damaged in one way, at every place where it can be.
type Damage = fn(&Listed) -> Vec<Listed>;

/// What a proof must find, and how it is planted.
const FLAWS: [(&str, Damage); 6] = [
    ("wrong owner", wrong_owner),
    ("lost hop", lost_hop),
    ("doubled pair", doubled_pair),
    ("missing return", missing_return),
    ("deadlock order", deadlock_order),
    ("leaked buffer", leaked_buffer),
];

/// Each flaw can be planted in every schedule, and is found wherever it is. The numbers are printed.
#[test]
fn each_of_six_flaws_planted_in_every_schedule_is_found() {
    let mut planted = [0; FLAWS.len()];
    let schedules = all();
    for (name, schedule) in &schedules {
        assert_eq!(schedule.prove().err(), None, "{name}");
        for ((flaw, plant), planted) in FLAWS.into_iter().zip(&mut planted) {
            let damaged = plant(schedule);
            assert!(
                !damaged.is_empty(),
                "{name} {:?}: nowhere to plant a {flaw}",
                schedule.of.pass
            );
            for (index, damaged) in damaged.iter().enumerate() {
                assert!(damaged.prove().is_err(), "{name} {:?}: {flaw} {index}", schedule.of.pass);
            }
            *planted += damaged.len();
        }
    }
    println!("{} schedules; flaws planted and found:", schedules.len());
    for ((flaw, _), planted) in FLAWS.into_iter().zip(planted) {
        println!("  {flaw:<16} {planted}");
    }
    assert!(planted.iter().all(|planted| *planted > 500), "{planted:?}");
}

/// At every rank and hop, the schedules that `damage` makes of this one, if any.
fn everywhere(
    schedule: &Listed,
    damage: impl Fn(&mut Listed, usize, usize) -> bool,
) -> Vec<Listed> {
    let places =
        (0..schedule.world()).flat_map(|rank| (0..schedule.hops()).map(move |h| (rank, h)));
    let at = |(rank, hop)| {
        let mut damaged = schedule.clone();
        damage(&mut damaged, rank, hop).then_some(damaged)
    };
    places.filter_map(at).collect()
}

/// The next owner's keys computed with, the next owner's queries, or the next owner's block moved
/// though both ends agree on it.
fn wrong_owner(schedule: &Listed) -> Vec<Listed> {
    let mut all = everywhere(schedule, |s, rank, hop| {
        let first = |tiles: &mut Vec<TilePlan>| tiles.first_mut().map(|tile| other(&mut tile.keys));
        s.ranks[rank][hop].tiles.edit(first).is_some()
    });
    all.extend(everywhere(schedule, |s, rank, hop| {
        let first =
            |tiles: &mut Vec<TilePlan>| tiles.first_mut().map(|tile| other(&mut tile.queries));
        s.ranks[rank][hop].tiles.edit(first).is_some()
    }));
    all.extend(everywhere(schedule, move_other));
    all
}

/// A hop left out on all ranks, or on one.
fn lost_hop(schedule: &Listed) -> Vec<Listed> {
    let is_idle = |hop: usize| schedule.ranks.iter().all(|hops| hops[hop] == Hop::default());
    let of_all = (0..schedule.hops()).filter(|hop| !is_idle(*hop)).map(|hop| {
        let mut damaged = schedule.clone();
        damaged.ranks.iter_mut().for_each(|hops| drop(hops.remove(hop)));
        damaged
    });
    let of_one = everywhere(schedule, |s, rank, hop| {
        s.ranks[rank].remove(hop);
        true
    });
    of_all.chain(of_one).collect()
}

/// A tile computed again, whole or a row of it, in its hop or in the next.
fn doubled_pair(schedule: &Listed) -> Vec<Listed> {
    let again = |s: &mut Listed, rank: usize, hop: usize, later: usize| {
        let tile = s.ranks[rank][hop].tiles.iter().last();
        let then = s.ranks[rank].get_mut(hop + later);
        then.zip(tile).map(|(then, tile)| then.tiles.push(tile)).is_some()
    };
    let mut all = everywhere(schedule, |s, rank, hop| again(s, rank, hop, 0));
    all.extend(everywhere(schedule, |s, rank, hop| again(s, rank, hop, 1)));
    all.extend(everywhere(schedule, |s, rank, hop| {
        let Some(mut tile) = s.ranks[rank][hop].tiles.iter().next() else { return false };
        tile.keys.rows.start = tile.keys.rows.end - 1;
        s.ranks[rank][hop].tiles.push(tile);
        true
    }));
    all
}

/// A result on its last move to its owner that both ends forget, and one that is never made of what was
/// computed.
fn missing_return(schedule: &Listed) -> Vec<Listed> {
    let mut all = everywhere(schedule, |s, rank, hop| {
        let sent = &mut s.ranks[rank][hop].sends;
        let is_home = |sent: &Move| sent.to == sent.block.owner && !sent.block.part.is_lent();
        let Some(index) = sent.iter().position(is_home) else { return false };
        let moved = sent.remove(index);
        s.ranks[moved.to][hop].receives.retain(|received| *received != moved);
        true
    });
    all.extend(everywhere(schedule, |s, rank, hop| s.ranks[rank][hop].finishes.pop().is_some()));
    all
}

/// What one end posts, or waits for, a hop later than the other; what it posts in another order;
/// and what comes after it is used.
fn deadlock_order(schedule: &Listed) -> Vec<Listed> {
    let late = |list: fn(&mut Hop) -> &mut Vec<Move>| {
        everywhere(schedule, move |s, rank, hop| {
            if hop + 1 == s.hops() {
                return false;
            }
            let moved = list(&mut s.ranks[rank][hop]).pop();
            list(&mut s.ranks[rank][hop + 1]).extend(moved);
            moved.is_some()
        })
    };
    let mut all = late(|hop| &mut hop.sends);
    all.extend(late(|hop| &mut hop.receives));
    all.extend(everywhere(schedule, |s, rank, hop| {
        let receives = &mut s.ranks[rank][hop].receives;
        let twin = |i: usize| (0..i).find(|j| receives[*j].from == receives[i].from);
        let pair = (0..receives.len()).find_map(|i| twin(i).map(|j| (i, j)));
        pair.map(|(i, j)| receives.swap(i, j)).is_some()
    }));
    all.extend(everywhere(schedule, |s, rank, hop| {
        s.ranks[rank][hop].sends.first_mut().map(|sent| sent.hops += 1).is_some()
    }));
    all
}

/// A buffer that is never freed.
fn leaked_buffer(schedule: &Listed) -> Vec<Listed> {
    everywhere(schedule, |s, rank, hop| s.ranks[rank][hop].frees.pop().is_some())
}

/// Everything else that can be lost, doubled or removed.
#[test]
fn whatever_else_is_lost_or_doubled_is_found() {
    let more: [fn(&mut Hop) -> bool; 5] = [
        |hop| hop.tiles.edit(Vec::pop).is_some(),
        |hop| hop.sends.pop().is_some(),
        |hop| hop.receives.pop().is_some(),
        |hop| hop.zeros.pop().is_some(),
        |hop| double(&mut hop.frees),
    ];
    let mut found = 0;
    for (name, schedule) in all() {
        for (index, damage) in more.into_iter().enumerate() {
            for damaged in everywhere(&schedule, |s, rank, hop| damage(&mut s.ranks[rank][hop])) {
                assert!(damaged.prove().is_err(), "{name} {:?}: {index}", schedule.of.pass);
                found += 1;
            }
        }
    }
    println!("{found} other damaged schedules refused");
    assert!(found > 1_000, "{found}");
}

fn double<T: Clone>(list: &mut Vec<T>) -> bool {
    let again = list.first().cloned();
    list.extend(again);
    !list.is_empty()
}

/// The first block that a rank sends in a hop becomes the next owner's, at both ends.
fn move_other(schedule: &mut Listed, rank: usize, hop: usize) -> bool {
    let Some(&moved) = schedule.ranks[rank][hop].sends.first() else { return false };
    let ends = |plan: &mut Hop| {
        let moves = plan.sends.iter_mut().chain(&mut plan.receives);
        moves.filter(|end| **end == moved).for_each(|end| other(&mut end.block));
    };
    ends(&mut schedule.ranks[rank][hop]);
    ends(&mut schedule.ranks[moved.to][hop]);
    true
}

fn other(block: &mut Block) {
    block.owner = (block.owner + 1) % WORLD;
}
