//! Broken schedules are caught: each test breaks a proved one in one way.

mod anything;
mod apart;
mod listed;

use annulus_sequence::{
    Alive, Block, Collective, Extent, Flaw, Heads, Hop, Made, Mask, Move, Part, Positions, Proof,
    Route, Rule, Strategy, TilePlan,
};
use listed::{Edit, Listed, broken};

const WORLD: usize = 4;
/// Key/value heads; as many query heads, but where heads are split.
const HEADS: Heads = Heads { query: 4, key_value: 2 };
const ULYSSES: Strategy = Strategy::Ulysses;
const USP: Strategy = Strategy::Usp { shape: Some([2, 2]) };
const NODES: Strategy = Strategy::DoubleRing { shape: Some([2, 2]) };

fn forward(strategy: Strategy) -> Listed {
    let split = strategy.split(&Mask::causal(), 32, WORLD, HEADS).expect("it splits");
    Listed::new(strategy.forward(&split).expect("every strategy runs on 4 ranks"))
}

fn backward(strategy: Strategy, how: Route) -> Listed {
    let split = strategy.split(&Mask::causal(), 32, WORLD, HEADS).expect("it splits");
    Listed::new(strategy.backward(&split, how).expect("every strategy runs on 4 ranks"))
}

/// The first tile of a hop that has one.
fn first(hop: &Hop) -> TilePlan {
    hop.tiles.iter().next().expect("a tile")
}

/// All heads and rows of a part of eight positions.
fn whole(part: Part, owner: usize) -> Block {
    let heads = Extent::all(if part.of_queries() { HEADS.query } else { HEADS.key_value });
    Block { part, owner, heads, rows: Extent::all(8) }
}

fn key_value(owner: usize) -> Block {
    whole(Part::KeyValue, owner)
}

fn gradient(owner: usize) -> Block {
    whole(Part::Gradient, owner)
}

#[test]
fn what_is_proved_of_whole_schedules() {
    // Rows of heads in a block of queries, and of keys.
    let (queries, keys) = (32, 16);
    let alive = |key_values, gradients| Alive {
        key_values: key_values * keys,
        gradients: gradients * keys,
        ..Alive::default()
    };
    let proof = |schedule: &Listed| {
        let Proof { alive, made, hops, .. } = schedule.prove().expect("a whole schedule");
        (alive, made, hops)
    };
    let outputs = Alive { outputs: queries, ..alive(2, 0) };
    let expected = (vec![outputs; 4], vec![Made::default(); 4], 3);
    assert_eq!(proof(&forward(Strategy::STRIPED)), expected);
    let back = |alive| Alive { query_gradients: queries, ..alive };
    let made = |made: usize| vec![Made { gradients: made * keys, ..Made::default() }; 4];
    let travelling = proof(&backward(Strategy::STRIPED, Route::Travelling));
    let expected = (vec![back(alive(2, 3)); 4], made(2), 5);
    assert_eq!(travelling, expected);
    let reversed = proof(&backward(Strategy::STRIPED, Route::Reversed));
    let expected = (vec![back(alive(2, 4)); 4], made(3), 5);
    assert_eq!(reversed, expected);
    let stay = proof(&backward(Strategy::STRIPED, Route::Queries));
    let travel = Alive { queries: 2 * queries, query_gradients: 4 * queries, ..alive(0, 1) };
    let others = vec![Made { gradients: keys, query_gradients: 2 * queries }; 4];
    assert_eq!(stay, (vec![travel; 4], others, 5));
    let gathered = proof(&backward(Strategy::ALL_GATHER, Route::default()));
    let expected = (vec![back(alive(3, 7)); 4], made(4), 2);
    assert_eq!(gathered, expected);
}

#[test]
fn a_dropped_hop() {
    let one_rank = |s: &mut Listed| s.ranks[2].truncate(3);
    let flaw = broken(forward(Strategy::Ring), one_rank);
    assert_eq!(flaw, Flaw::UnevenHops { rank: 2, found: 3, wanted: 4 });
    // On all ranks alike, the blocks that follow are other blocks than those that are sent on.
    let all_ranks = |s: &mut Listed| s.ranks.iter_mut().for_each(|hops| drop(hops.remove(1)));
    for strategy in [Strategy::Ring, Strategy::STRIPED, Strategy::MEGATRON] {
        for schedule in [forward(strategy), backward(strategy, Route::Reversed)] {
            assert!(matches!(broken(schedule, all_ranks), Flaw::Absent(at) if at.hop == 1));
        }
    }
    let last = |s: &mut Listed| s.ranks.iter_mut().for_each(|hops| hops.truncate(3));
    let flaw = broken(forward(Strategy::STRIPED), last);
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.rank == 0 && at.block.owner == 1));
}

#[test]
fn a_doubled_tile() {
    let double = |s: &mut Listed| {
        let tile = first(&s.ranks[3][2]);
        s.ranks[3][2].tiles.push(tile);
    };
    let flaw = broken(forward(Strategy::Ring), double);
    assert!(matches!(flaw, Flaw::ComputedTwice(at) if (at.rank, at.hop) == (3, 2)));
    let said = "rank 3, hop 2: keys and values of rank 1 (heads 0..2, rows 0..8) are computed \
                with a second time";
    assert_eq!(flaw.to_string(), said);
    // Some heads and rows of it are enough.
    let flaw = broken(forward(Strategy::Ring), |s| {
        let mut tile = first(&s.ranks[3][2]);
        tile.queries.heads = Extent { start: 2, end: 3 };
        tile.keys.heads = Extent { start: 1, end: 2 };
        tile.keys.rows = Extent { start: 7, end: 8 };
        s.ranks[3][2].tiles.push(tile);
    });
    assert!(matches!(flaw, Flaw::ComputedTwice(at) if (at.rank, at.hop) == (3, 2)), "{flaw}");
    // The same pairs on another rank: the lanes of a product hold the same positions.
    let flaw = broken(forward(USP), |s| {
        let mut tile = first(&s.ranks[0][1]);
        tile.queries.heads = first(&s.ranks[1][1]).queries.heads;
        s.ranks[0][1].tiles.push(tile);
    });
    assert!(matches!(flaw, Flaw::Incomplete(_) | Flaw::Misplaced(_)), "{flaw}");
}

#[test]
fn a_missing_tile() {
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[3][1].tiles.edit(Vec::clear));
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.rank == 3 && at.block.owner == 2));
    let flaw = broken(backward(Strategy::Ring, Route::Travelling), |s| {
        s.ranks[3][1].tiles.edit(Vec::clear);
    });
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.rank == 3 && at.block.owner == 2));
    // One head of one pair of shards, of all that Ulysses exchanges.
    let flaw = broken(forward(ULYSSES), |s| {
        s.ranks[2][1].tiles.edit(|tiles| tiles.remove(1));
    });
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.block.part == Part::KeyValue), "{flaw}");
    // Rows that a window does not reach need not be computed; those that it does, must.
    let window = Mask::causal().and(Rule::Window(4));
    let split = Strategy::Halo.split(&window, 32, WORLD, HEADS).expect("it splits");
    let halo = Strategy::Halo.forward(&split).expect("halo runs");
    let cut = |rows: Extent| {
        move |s: &mut Listed| {
            let hops = &mut s.ranks;
            hops[1][1].tiles.edit(|tiles| tiles[0].keys.rows = rows);
        }
    };
    let halo = Listed::new(halo);
    assert_eq!(first(&halo.ranks[1][1]).keys.rows, Extent { start: 5, end: 8 });
    let flaw = broken(halo, cut(Extent { start: 6, end: 8 }));
    let left = Extent { start: 5, end: 6 };
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.block.rows.contains(left)), "{flaw}");
}

#[test]
fn a_wrong_owner() {
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        s.ranks[1][1].tiles.edit(|tiles| tiles[0].keys.owner = 2);
    });
    assert!(matches!(flaw, Flaw::Absent(at) if at.block == key_value(2)), "{flaw}");
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        s.ranks[1][1].tiles.edit(|tiles| tiles[0].queries.owner = 0);
    });
    assert!(matches!(flaw, Flaw::Absent(at) if at.block.part == Part::Query), "{flaw}");
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        s.ranks[1][1].tiles.edit(|tiles| tiles[0].keys.part = Part::Gradient);
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.block.part == Part::Gradient), "{flaw}");
    let flaw = broken(forward(Strategy::STRIPED), |s| s.ranks[1][1].zeros.push(gradient(1)));
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.block == gradient(1)), "{flaw}");
    let flaw = broken(backward(Strategy::STRIPED, Route::Reversed), |s| {
        s.ranks[1][1].zeros.push(gradient(7));
    });
    assert!(matches!(flaw, Flaw::OutOfRange(at) if at.block.owner == 7), "{flaw}");
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        s.ranks[1][3].finishes = vec![whole(Part::Query, 2)];
    });
    assert!(matches!(flaw, Flaw::Absent(at) if at.block.owner == 2), "{flaw}");
}

#[test]
fn heads_that_do_not_belong_together() {
    let flaw = broken(forward(Strategy::Ring), |s| {
        s.ranks[0][0].tiles.edit(|tiles| tiles[0].queries.heads = Extent { start: 0, end: 2 });
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.block.part == Part::KeyValue), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| {
        s.ranks[0][0].tiles.edit(|tiles| {
            tiles[0].queries.heads = Extent { start: 0, end: 1 };
            tiles[0].keys.heads = Extent { start: 1, end: 2 };
        });
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.block.part == Part::KeyValue), "{flaw}");
}

#[test]
fn a_missing_return() {
    for how in Route::ALL {
        let flaw = broken(backward(Strategy::STRIPED, how), |s| {
            for hop in s.ranks.iter_mut().filter_map(|hops| hops.last_mut()) {
                hop.sends.clear();
                hop.receives.clear();
            }
        });
        let found = matches!(flaw, Flaw::NotHome(at) | Flaw::Leaked(at) if at.block.part.is_sum());
        assert!(found, "{how:?}: {flaw}");
    }
    let pop = |s: &mut Listed| s.ranks.iter_mut().for_each(|hops| drop(hops.pop()));
    let flaw = broken(backward(Strategy::ALL_GATHER, Route::default()), pop);
    assert!(matches!(flaw, Flaw::Leaked(at) if at.block == gradient(1)), "{flaw}");
    let flaw = broken(forward(ULYSSES), pop);
    assert!(matches!(flaw, Flaw::NotHome(at) if at.block == whole(Part::Output, 0)), "{flaw}");
    let flaw = broken(backward(NODES, Route::Reversed), pop);
    assert!(matches!(flaw, Flaw::Leaked(at) if at.block.part == Part::Gradient), "{flaw}");
}

#[test]
fn a_result_that_is_not_finished_or_finished_twice() {
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[2][3].finishes.clear());
    assert!(matches!(flaw, Flaw::NotHome(at) if at.block == whole(Part::Output, 2)), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| {
        let finished = s.ranks[2][3].finishes[0];
        s.ranks[2][1].finishes.push(finished);
    });
    assert!(matches!(flaw, Flaw::Occupied(at) if at.block.part == Part::Output), "{flaw}");
    // Backward two parts of a gradient are added, but one of them is not asked for.
    let flaw = broken(backward(Strategy::Ring, Route::Reversed), |s| {
        s.ranks[2][3].finishes.clear();
    });
    assert!(matches!(flaw, Flaw::NotHome(at) if at.block.part == Part::QueryGradient), "{flaw}");
}

#[test]
fn a_leaked_or_lost_buffer() {
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[1][2].frees.clear());
    assert!(matches!(flaw, Flaw::Leaked(at) if at.block == key_value(3)), "{flaw}");
    let free =
        |schedule, hop: usize, block| broken(schedule, move |s| s.ranks[2][hop].frees.push(block));
    let resident = free(forward(Strategy::Ring), 3, key_value(2));
    assert!(matches!(resident, Flaw::FreedResident(_)), "{resident}");
    let twice = free(forward(Strategy::Ring), 2, key_value(0));
    assert!(matches!(twice, Flaw::Absent(_)), "{twice}");
    let result = free(backward(Strategy::Ring, Route::Reversed), 4, gradient(2));
    assert!(matches!(result, Flaw::Lost(_)), "{result}");
    let flaw = broken(forward(ULYSSES), |s| {
        s.ranks[0][1].frees.pop();
    });
    assert!(matches!(flaw, Flaw::Leaked(at) if at.rank == 0), "{flaw}");
    // What is still on its way is not gone: between nodes a block is read for two hops.
    let flaw = broken(forward(NODES), |s| {
        let entered = s.ranks[0][1].receives.iter().map(|received| received.block);
        let entered = entered.max().unwrap_or(key_value(1));
        s.ranks[0][1].frees.push(entered);
    });
    assert!(matches!(flaw, Flaw::Absent(_) | Flaw::FreedResident(_)), "{flaw}");
}

#[test]
fn a_swapped_receive_peer() {
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[2][0].receives[0].from = 3);
    assert!(matches!(flaw, Flaw::SendUnmatched { at, to: 2 } if at.rank == 1), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[2][0].receives[0].from = 2);
    assert!(matches!(flaw, Flaw::WrongPeer(at) if at.rank == 2), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[2][0].sends[0].to = WORLD);
    assert!(matches!(flaw, Flaw::WrongPeer(at) if at.rank == 2), "{flaw}");
}

#[test]
fn an_unmatched_send_or_receive() {
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[0][1].receives.clear());
    assert!(matches!(flaw, Flaw::SendUnmatched { at, to: 0 } if (at.rank, at.hop) == (3, 1)));
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[3][1].sends.clear());
    assert!(matches!(flaw, Flaw::ReceiveUnmatched { at, from: 3 } if at.rank == 0), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| {
        let again = s.ranks[3][1].sends[0];
        s.ranks[3][1].sends.push(again);
    });
    assert!(matches!(flaw, Flaw::SendUnmatched { at, to: 0 } if at.rank == 3), "{flaw}");
    // The same bytes one hop later would be waited for in vain: a deadlock.
    let flaw = broken(forward(Strategy::Ring), |s| {
        let late = std::mem::take(&mut s.ranks[3][1].sends);
        s.ranks[3][2].sends.extend(late);
    });
    assert!(matches!(flaw, Flaw::ReceiveUnmatched { at, from: 3 } if at.hop == 1), "{flaw}");
}

#[test]
fn another_order_on_the_other_side() {
    let flaw = broken(backward(Strategy::STRIPED, Route::Travelling), |s| {
        s.ranks[1][1].receives.reverse();
    });
    assert!(matches!(flaw, Flaw::OutOfOrder { at, to: 1 } if at.rank == 0), "{flaw}");
    // From one peer two come, and they are taken for one another.
    let flaw = broken(forward(ULYSSES), |s| s.ranks[1][0].receives.swap(0, 1));
    assert!(matches!(flaw, Flaw::OutOfOrder { at, to: 1 } if at.rank == 0), "{flaw}");
}

#[test]
fn an_arrival_too_late() {
    let late = |hops: usize| {
        move |s: &mut Listed| {
            s.ranks[0][0].sends[0].hops = hops;
            s.ranks[1][0].receives[0].hops = hops;
        }
    };
    let flaw = broken(forward(Strategy::Ring), late(2));
    assert!(matches!(flaw, Flaw::Absent(at) if (at.rank, at.hop) == (1, 1)), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), late(5));
    assert!(matches!(flaw, Flaw::OutOfRange(_)), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), late(0));
    assert!(matches!(flaw, Flaw::OutOfRange(_)), "{flaw}");
    let one_side = |s: &mut Listed| s.ranks[0][0].sends[0].hops = 2;
    let flaw = broken(forward(Strategy::Ring), one_side);
    assert!(matches!(flaw, Flaw::SendUnmatched { .. }), "{flaw}");
}

#[test]
fn a_part_of_a_block() {
    let both = |s: &mut Listed, change: fn(&mut Move)| {
        change(&mut s.ranks[0][0].sends[0]);
        change(&mut s.ranks[1][0].receives[0]);
    };
    let rows = |start, end| Extent { start, end };
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        both(s, |moved| moved.block.rows.end = 9);
    });
    assert!(matches!(flaw, Flaw::OutOfRange(_)), "{flaw}");
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        both(s, |moved| moved.block.heads.start = 2);
    });
    assert!(matches!(flaw, Flaw::OutOfRange(_)), "{flaw}");
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        both(s, |moved| moved.block.rows.start = 4);
    });
    assert!(matches!(flaw, Flaw::Incomplete(at) if (at.rank, at.hop) == (1, 1)), "{flaw}");
    // On its last hop a block is computed with and not sent on.
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        s.ranks[0][2].sends[0].block.heads.end = 1;
        s.ranks[1][2].receives[0].block.heads.end = 1;
    });
    assert!(matches!(flaw, Flaw::Incomplete(at) if (at.rank, at.hop) == (1, 3)), "{flaw}");
    let flaw = broken(backward(Strategy::STRIPED, Route::Travelling), |s| {
        s.ranks[0][1].sends[1].block.rows = rows(0, 4);
        s.ranks[1][1].receives[1].block.rows = rows(0, 4);
    });
    assert!(matches!(flaw, Flaw::Incomplete(at) if at.block.owner == 0), "{flaw}");
}

#[test]
fn something_in_the_way() {
    let flaw = broken(forward(Strategy::STRIPED), |s| {
        for (rank, hops) in s.ranks.iter_mut().enumerate() {
            // Everybody sends its own block on in the second hop again.
            let owner = (rank + WORLD - 1) % WORLD;
            hops[1].frees.clear();
            hops[1].sends[0].block.owner = rank;
            hops[1].receives[0].block.owner = owner;
        }
    });
    assert!(matches!(flaw, Flaw::Occupied(at) if at.hop == 1), "{flaw}");
}

#[test]
fn a_collective_that_not_all_join() {
    let change = |schedule: Listed, hop: usize, change: fn(&mut Hop)| {
        broken(schedule, move |s| change(&mut s.ranks[2][hop]))
    };
    let gather = || backward(Strategy::ALL_GATHER, Route::default());
    let flaw = change(gather(), 0, |hop| hop.collective = None);
    assert!(matches!(flaw, Flaw::NotCollective(at) if at.rank == 2), "{flaw}");
    let flaw = change(gather(), 2, |hop| hop.collective = Some(Collective::AllGather));
    assert!(matches!(flaw, Flaw::NotCollective(at) if at.hop == 2), "{flaw}");
}

#[test]
fn positions_that_are_not_sharded_once_each() {
    let sharded = |change: fn(&mut Vec<Positions>)| {
        broken(forward(Strategy::Ring), |s| change(&mut s.positions))
    };
    let twice = sharded(|positions| positions[1] = positions[0].clone());
    assert_eq!(twice, Flaw::NotDealt { tokens: 32, world: WORLD });
    let beyond = sharded(|positions| {
        positions[3] = Positions::from_list(&[24, 25, 26, 27, 28, 29, 30, 32]).expect("it rises");
    });
    assert_eq!(beyond, Flaw::NotDealt { tokens: 32, world: WORLD });
    let fewer = sharded(|positions| drop(positions.pop()));
    assert_eq!(fewer, Flaw::NotDealt { tokens: 24, world: WORLD });
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks.clear());
    assert_eq!(flaw, Flaw::NotDealt { tokens: 32, world: 0 });
}
