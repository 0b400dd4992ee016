//! Every schedule, damaged everywhere in every way.

use annulus_sequence::{Block, Hop, Mask, Schedule, Strategy, prove};

use crate::{HEADS, NODES, USP, WORLD};

/// Every strategy, forward and backward.
fn all() -> impl Iterator<Item = Schedule> {
    let strategies =
        [USP, NODES].into_iter().chain(Strategy::ALL).filter(|s| *s != Strategy::Local);
    strategies.flat_map(move |strategy| {
        let split = strategy.split(&Mask::causal(), 32, WORLD, HEADS).expect("32 positions deal");
        let backward = strategy.returns().iter().map(|how| strategy.backward(&split, *how));
        let all = backward.chain([strategy.forward(&split)]).collect::<Result<Vec<_>, _>>();
        all.expect("every strategy runs on 4 ranks")
    })
}

/// No hop of any schedule can be left out, be it on all ranks.
#[test]
fn any_dropped_hop() {
    for schedule in all() {
        for hop in 0..schedule.hops() {
            let drops = |s: &mut Schedule| s.ranks.iter_mut().for_each(|h| drop(h.remove(hop)));
            let mut left = schedule.clone();
            drops(&mut left);
            let empty = |hops: &Vec<Hop>| hops[hop] == Hop::default();
            let said = prove(&left).err();
            let name = format!("{} {:?}, hop {hop}", schedule.strategy, schedule.pass);
            assert!(said.is_some() || schedule.ranks.iter().all(empty), "{name}");
        }
    }
}

/// No move, tile, sum, finish or free of any schedule can be left out or done twice, and no block
/// be another's.
#[test]
fn anything_lost_doubled_or_taken_for_another() {
    let mut found = 0;
    for schedule in all() {
        for (rank, hop) in (0..WORLD).flat_map(|r| (0..schedule.hops()).map(move |h| (r, h))) {
            for (index, damage) in DAMAGES.into_iter().enumerate() {
                let mut left = schedule.clone();
                if damage(&mut left.ranks[rank][hop]) {
                    let what = format!("{} {:?}", schedule.strategy, schedule.pass);
                    assert!(prove(&left).is_err(), "{what}: rank {rank}, hop {hop}, {index}");
                    found += 1;
                }
            }
        }
    }
    println!("{found} damaged schedules refused");
    assert!(found > 1_000, "{found}");
}

type Damage = fn(&mut Hop) -> bool;

/// Each damages a hop if it has what to damage.
const DAMAGES: [Damage; 11] = [
    |hop| hop.sends.pop().is_some(),
    |hop| hop.receives.pop().is_some(),
    |hop| hop.tiles.pop().is_some(),
    |hop| hop.finishes.pop().is_some(),
    |hop| hop.frees.pop().is_some(),
    |hop| hop.zeros.pop().is_some(),
    |hop| double(&mut hop.tiles),
    |hop| double(&mut hop.frees),
    |hop| hop.tiles.first_mut().is_some_and(|tile| other(&mut tile.keys)),
    |hop| hop.tiles.first_mut().is_some_and(|tile| other(&mut tile.queries)),
    |hop| hop.sends.first_mut().is_some_and(|sent| other(&mut sent.block)),
];

fn double<T: Clone>(list: &mut Vec<T>) -> bool {
    let again = list.first().cloned();
    list.extend(again);
    !list.is_empty()
}

fn other(block: &mut Block) -> bool {
    block.owner = (block.owner + 1) % WORLD;
    true
}
