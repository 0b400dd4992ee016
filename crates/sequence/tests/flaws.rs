//! Broken schedules are caught: each test breaks a proved one in one way.

use annulus_sequence::{
    Buffer, Collective, Flaw, Fold, Hop, Layout, Mask, Part, Proof, Return, Schedule, Strategy,
    TilePlan, prove,
};

const WORLD: usize = 4;

fn forward(strategy: Strategy) -> Schedule {
    strategy.forward(&Mask::causal(), 32, WORLD, 2).expect("32 positions can be dealt to 4 ranks")
}

fn backward(strategy: Strategy, how: Return) -> Schedule {
    let schedule = strategy.backward(&Mask::causal(), 32, WORLD, 2, how);
    schedule.expect("32 positions can be dealt to 4 ranks")
}

/// What the proof says of a schedule that was proved before `damage` was done to it.
fn broken(mut schedule: Schedule, damage: impl FnOnce(&mut Schedule)) -> Flaw {
    assert!(prove(&schedule).is_ok());
    damage(&mut schedule);
    prove(&schedule).expect_err("damage is found")
}

fn gradient(owner: usize) -> Buffer {
    Buffer { part: Part::Gradient, owner }
}

#[test]
fn what_is_proved_of_whole_schedules() {
    let proof = prove(&forward(Strategy::Striped)).unwrap();
    assert_eq!(
        proof,
        Proof { key_values: vec![2; 4], gradients: vec![0; 4], made: vec![0; 4], hops: 3 }
    );
    let proof = prove(&backward(Strategy::Striped, Return::Travelling)).unwrap();
    assert_eq!(
        proof,
        Proof { key_values: vec![2; 4], gradients: vec![3; 4], made: vec![2; 4], hops: 5 }
    );
    let proof = prove(&backward(Strategy::Striped, Return::Reversed)).unwrap();
    assert_eq!(
        proof,
        Proof { key_values: vec![2; 4], gradients: vec![4; 4], made: vec![3; 4], hops: 5 }
    );
    let proof = prove(&backward(Strategy::AllGather, Return::default())).unwrap();
    assert_eq!(
        proof,
        Proof { key_values: vec![3; 4], gradients: vec![5; 4], made: vec![4; 4], hops: 2 }
    );
}

#[test]
fn a_dropped_hop() {
    let one_rank = |s: &mut Schedule| s.ranks[2].truncate(3);
    let flaw = broken(forward(Strategy::Ring), one_rank);
    assert_eq!(flaw, Flaw::UnevenHops { rank: 2, found: 3, wanted: 4 });
    // On all ranks alike, the blocks that follow are other blocks than those that are sent on.
    let all_ranks = |s: &mut Schedule| s.ranks.iter_mut().for_each(|hops| drop(hops.remove(1)));
    for strategy in [Strategy::Ring, Strategy::Striped, Strategy::Megatron] {
        for schedule in [forward(strategy), backward(strategy, Return::Reversed)] {
            assert!(matches!(broken(schedule, all_ranks), Flaw::Absent(at) if at.hop == 1));
        }
    }
    let last = |s: &mut Schedule| s.ranks.iter_mut().for_each(|hops| hops.truncate(3));
    let flaw = broken(forward(Strategy::Striped), last);
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.rank == 0 && at.buffer.owner == 1));
}

#[test]
fn a_doubled_tile() {
    let double = |s: &mut Schedule| {
        let tile = s.ranks[3][2].tiles[0];
        s.ranks[3][2].tiles.push(tile);
    };
    let flaw = broken(forward(Strategy::Ring), double);
    assert!(matches!(flaw, Flaw::ComputedTwice(at) if (at.rank, at.hop) == (3, 2)));
    assert_eq!(
        flaw.to_string(),
        "rank 3, hop 2: keys and values of rank 1 are computed with a \
                                  second time"
    );
    let later = |s: &mut Schedule| {
        s.ranks[1][3].tiles = vec![TilePlan { queries: 1, keys: 1, into: None }];
    };
    let flaw = broken(forward(Strategy::Ring), later);
    assert!(matches!(flaw, Flaw::ComputedTwice(at) if at.hop == 3));
}

#[test]
fn a_missing_tile() {
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks[3][1].tiles.clear());
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.rank == 3 && at.buffer.owner == 2));
    let flaw = broken(backward(Strategy::Ring, Return::Travelling), |s| {
        s.ranks[3][1].tiles.clear();
        s.ranks[3][1].folds.clear();
    });
    assert!(matches!(flaw, Flaw::NotComputed(at) if at.rank == 3 && at.buffer.owner == 2));
}

#[test]
fn a_wrong_owner() {
    let flaw = broken(forward(Strategy::Striped), |s| s.ranks[1][1].tiles[0].keys = 2);
    assert!(matches!(flaw, Flaw::Absent(at) if at.buffer == Buffer::key_value(2)));
    let flaw = broken(forward(Strategy::Striped), |s| s.ranks[1][1].tiles[0].queries = 0);
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.buffer.part == Part::Query));
    let into = Some(Buffer::contribution(3));
    let flaw = broken(backward(Strategy::Striped, Return::Reversed), |s| {
        s.ranks[1][1].tiles[0].into = into;
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if Some(at.buffer) == into));
    let flaw = broken(forward(Strategy::Striped), |s| s.ranks[1][1].tiles[0].into = into);
    assert!(matches!(flaw, Flaw::Misplaced(at) if Some(at.buffer) == into));
    let flaw = broken(backward(Strategy::Striped, Return::Reversed), |s| {
        s.ranks[1][2].folds[0].into = gradient(1);
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.buffer == gradient(1)));
}

#[test]
fn a_missing_return() {
    for how in [Return::Travelling, Return::Reversed] {
        let flaw = broken(backward(Strategy::Striped, how), |s| {
            for hop in s.ranks.iter_mut().filter_map(|hops| hops.last_mut()) {
                hop.sends.clear();
                hop.receives.clear();
            }
        });
        assert!(matches!(flaw, Flaw::NotHome { at, .. } if at.buffer == gradient(0)), "{flaw}");
    }
    let flaw = broken(backward(Strategy::AllGather, Return::default()), |s| {
        for hops in &mut s.ranks {
            hops.pop();
        }
    });
    assert!(matches!(flaw, Flaw::NotHome { at, from: 0 } if at.buffer == gradient(0)));
}

#[test]
fn a_missing_fold() {
    let flaw = broken(backward(Strategy::Striped, Return::Travelling), |s| {
        s.ranks[2][1].folds.clear();
    });
    assert!(matches!(flaw, Flaw::NotHome { at, from: 2 } if at.rank == 1));
    let flaw = broken(backward(Strategy::Striped, Return::Reversed), |s| {
        s.ranks[2][4].folds.clear();
    });
    assert!(matches!(flaw, Flaw::NotHome { at, from: 2 } if at.rank == 2));
}

#[test]
fn a_fold_too_many() {
    let again = Fold { into: gradient(1), from: Buffer::contribution(1) };
    let flaw = broken(backward(Strategy::Striped, Return::Travelling), |s| {
        s.ranks[2][1].folds.push(again);
    });
    assert!(matches!(flaw, Flaw::Absent(at) if at.buffer == again.from));
}

#[test]
fn a_missing_free() {
    let flaw = broken(forward(Strategy::Megatron), |s| s.ranks[2][3].frees.clear());
    assert!(matches!(flaw, Flaw::Leaked(at) if at.rank == 2 && at.buffer.owner == 3));
    let flaw = broken(forward(Strategy::AllGather), |s| s.ranks[2][1].frees.truncate(2));
    assert!(matches!(flaw, Flaw::Leaked(at) if at.rank == 2 && at.buffer.owner == 3));
}

#[test]
fn a_free_too_many() {
    let free = |schedule: Schedule, hop: usize, buffer: Buffer| {
        broken(schedule, move |s| s.ranks[2][hop].frees.push(buffer))
    };
    let own = free(forward(Strategy::Ring), 0, Buffer::key_value(2));
    assert!(matches!(own, Flaw::FreedResident(_)), "{own}");
    let twice = free(forward(Strategy::Ring), 1, Buffer::key_value(1));
    assert!(matches!(twice, Flaw::Absent(_)), "{twice}");
    let result = free(backward(Strategy::Ring, Return::Reversed), 4, gradient(2));
    assert!(matches!(result, Flaw::Lost(_)), "{result}");
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
        let again = s.ranks[3][1].sends[0].clone();
        s.ranks[3][1].sends.push(again);
    });
    assert!(matches!(flaw, Flaw::SendUnmatched { at, to: 0 } if at.rank == 3), "{flaw}");
    // The same bytes one hop later would be waited for in vain.
    let flaw = broken(forward(Strategy::Ring), |s| {
        let late = std::mem::take(&mut s.ranks[3][1].sends);
        s.ranks[3][2].sends.extend(late);
    });
    assert!(matches!(flaw, Flaw::ReceiveUnmatched { at, from: 3 } if at.hop == 1), "{flaw}");
}

#[test]
fn another_order_on_the_other_side() {
    let flaw = broken(backward(Strategy::Striped, Return::Travelling), |s| {
        s.ranks[1][1].receives.reverse();
    });
    assert!(matches!(flaw, Flaw::OutOfOrder { at, to: 1 } if at.rank == 0), "{flaw}");
}

#[test]
fn a_part_of_a_buffer() {
    let both = |s: &mut Schedule, change: fn(&mut annulus_sequence::Move)| {
        change(&mut s.ranks[0][0].sends[0]);
        change(&mut s.ranks[1][0].receives[0]);
    };
    let flaw = broken(forward(Strategy::Striped), |s| both(s, |moved| moved.rows = 0..9));
    assert!(matches!(flaw, Flaw::OutOfRange(_)), "{flaw}");
    let flaw = broken(forward(Strategy::Striped), |s| both(s, |moved| moved.heads = 2..2));
    assert!(matches!(flaw, Flaw::OutOfRange(_)), "{flaw}");
    let flaw = broken(forward(Strategy::Striped), |s| both(s, |moved| moved.rows = 4..8));
    assert!(matches!(flaw, Flaw::Incomplete(at) if (at.rank, at.hop) == (1, 1)), "{flaw}");
    // On its last hop a block is computed with and not sent on.
    let flaw = broken(forward(Strategy::Striped), |s| {
        s.ranks[0][2].sends[0].heads = 0..1;
        s.ranks[1][2].receives[0].heads = 0..1;
    });
    assert!(matches!(flaw, Flaw::Incomplete(at) if (at.rank, at.hop) == (1, 3)), "{flaw}");
    let flaw = broken(backward(Strategy::Striped, Return::Travelling), |s| {
        s.ranks[0][1].sends[1].heads = 0..1;
        s.ranks[1][1].receives[1].heads = 0..1;
    });
    assert!(matches!(flaw, Flaw::Incomplete(at) if at.buffer == gradient(0)), "{flaw}");
}

#[test]
fn something_in_the_way() {
    let flaw = broken(forward(Strategy::Striped), |s| {
        for (rank, hops) in s.ranks.iter_mut().enumerate() {
            // Everybody sends its own block on in the second hop again.
            let owner = (rank + WORLD - 1) % WORLD;
            hops[1].frees.clear();
            hops[1].sends[0].buffer.owner = rank;
            hops[1].receives[0].buffer.owner = owner;
        }
    });
    assert!(matches!(flaw, Flaw::Occupied(at) if at.hop == 1), "{flaw}");
}

#[test]
fn a_collective_that_is_not_one() {
    let change = |schedule: Schedule, hop: usize, change: fn(&mut Hop)| {
        broken(schedule, move |s| change(&mut s.ranks[2][hop]))
    };
    let gather = || backward(Strategy::AllGather, Return::default());
    let flaw = change(gather(), 0, |hop| hop.collective = None);
    assert!(matches!(flaw, Flaw::NotCollective(at) if at.rank == 2), "{flaw}");
    let flaw = change(gather(), 2, |hop| hop.collective = Some(Collective::AllGather));
    assert!(matches!(flaw, Flaw::NotCollective(at) if at.hop == 2), "{flaw}");
    let flaw = change(gather(), 0, |hop| hop.sends.truncate(2));
    assert!(matches!(flaw, Flaw::NotCollective(at) if at.hop == 0), "{flaw}");
    let flaw = change(gather(), 1, |hop| hop.tiles.truncate(2));
    assert!(matches!(flaw, Flaw::Absent(at) if at.buffer == Buffer::contribution(3)), "{flaw}");
}

#[test]
fn positions_that_the_layout_does_not_deal() {
    let flaw = broken(forward(Strategy::Ring), |s| s.positions.swap(0, 1));
    assert_eq!(flaw, Flaw::NotDealt { tokens: 32, world: WORLD });
    let flaw = broken(forward(Strategy::Ring), |s| s.layout = Layout::Striped { width: 0 });
    assert_eq!(flaw, Flaw::NotDealt { tokens: 32, world: WORLD });
    let flaw = broken(forward(Strategy::Ring), |s| s.ranks.clear());
    assert_eq!(flaw, Flaw::NotDealt { tokens: 32, world: 0 });
}
