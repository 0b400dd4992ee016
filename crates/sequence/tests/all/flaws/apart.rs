//! Keys and values that travel separately: what is scored is weighted, once, after all of a row is scored.

use annulus_sequence::{Alive, Flaw, Mask, Part, Strategy, prove};

use super::{Edit, HEADS, Listed, WORLD, broken, first, forward, whole};

/// The hop in which the last rank, which sees all keys, weights its own values.
const VALUES: usize = WORLD;
const LAST: usize = WORLD - 1;

fn schedule() -> Listed {
    forward(Strategy::LiRing)
}

/// Moves the first tile of the last rank to another hop.
fn moved(schedule: &mut Listed, from: usize, to: usize) {
    let tile = schedule.ranks[LAST][from].tiles.edit(|tiles| tiles.remove(0));
    schedule.ranks[LAST][to].tiles.push(tile);
}

#[test]
fn what_is_proved_of_whole_ones() {
    let proof = schedule().prove().expect("a whole schedule");
    let keys = HEADS.key_value * 8;
    // Rank by rank, a query sees one block more.
    let alive = |rank: usize| Alive {
        halves: 2 * keys,
        outputs: HEADS.query * 8,
        scores: HEADS.query * 8 * 8 * (rank + 1),
        ..Alive::default()
    };
    assert_eq!(proof.alive, (0..WORLD).map(alive).collect::<Vec<_>>());
    assert_eq!(proof.hops, 2 * (WORLD - 1));
    let alone = Strategy::LiRing.split(&Mask::full(), 32, 1, HEADS).expect("it splits");
    let alone = prove(&Strategy::LiRing.forward(&alone).expect("it runs")).expect("it is whole");
    assert_eq!(alone.alive[0].scores, HEADS.query * 32 * 32);
}

#[test]
fn scored_twice() {
    let flaw = broken(schedule(), |s| {
        let tile = first(&s.ranks[LAST][1]);
        s.ranks[LAST][1].tiles.push(tile);
    });
    assert!(matches!(flaw, Flaw::ComputedTwice(at) if at.block == whole(Part::Key, 2)), "{flaw}");
}

#[test]
fn weighed_twice_or_without_scores() {
    let flaw = broken(schedule(), |s| {
        let tile = first(&s.ranks[LAST][VALUES + 1]);
        s.ranks[LAST][VALUES + 1].tiles.push(tile);
    });
    let said = "rank 3, hop 5: values of rank 2 (heads 0..2, rows 0..8) are weighed without their \
                scores";
    assert_eq!(flaw.to_string(), said);
    // Some rows of what was scored are not it.
    let flaw = broken(schedule(), |s| {
        s.ranks[LAST][VALUES].tiles.edit(|tiles| tiles[0].keys.rows.end = 4);
    });
    assert!(matches!(flaw, Flaw::NotScored(at) if at.hop == VALUES), "{flaw}");
    // Scored, but by another rank than the one that weighs.
    let flaw = broken(schedule(), |s| s.ranks[LAST][2].tiles.edit(Vec::clear));
    assert!(matches!(flaw, Flaw::NotScored(at) if at.block.owner == 1), "{flaw}");
}

#[test]
fn scored_and_never_weighed() {
    let flaw = broken(schedule(), |s| s.ranks[LAST][VALUES + 2].tiles.edit(Vec::clear));
    assert!(matches!(flaw, Flaw::NotWeighed(at) if at.block == whole(Part::Key, 1)), "{flaw}");
    assert!(flaw.to_string().ends_with("are scored and their values never weighed"), "{flaw}");
}

#[test]
fn neither_scored_nor_weighed() {
    let flaw = broken(schedule(), |s| {
        s.ranks[LAST][1].tiles.edit(Vec::clear);
        s.ranks[LAST][VALUES + 1].tiles.edit(Vec::clear);
    });
    assert!(matches!(flaw, Flaw::NotComputed(at) if (at.rank, at.block.owner) == (LAST, 2)));
}

#[test]
fn a_softmax_of_rows_that_are_not_whole() {
    let flaw = broken(schedule(), |s| {
        // Own keys are always there; without their scores the others' values come first.
        moved(s, 0, VALUES + 1);
        s.ranks[LAST][VALUES].tiles.edit(Vec::clear);
    });
    assert!(matches!(flaw, Flaw::ScoredLate(at) if at.hop == VALUES + 1), "{flaw}");
}

#[test]
fn halves_and_wholes_do_not_mix() {
    let both = |s: &mut Listed| {
        // Own keys and values are there together: the tile could be of both.
        s.ranks[LAST][0].tiles.edit(|tiles| tiles[0].keys.part = Part::KeyValue);
        s.ranks[LAST][VALUES].tiles.edit(Vec::clear);
    };
    let flaw = broken(schedule(), both);
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.hop == 1), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| {
        s.ranks[LAST][0].tiles.edit(|tiles| tiles[0].keys.part = Part::Key);
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.hop == 1), "{flaw}");
}

#[test]
fn halves_are_of_the_forward_pass() {
    let how = annulus_sequence::Route::Reversed;
    let flaw = broken(super::backward(Strategy::LiRing, how), |s| {
        s.ranks[LAST][0].tiles.edit(|tiles| tiles[0].keys.part = Part::Key);
    });
    assert!(matches!(flaw, Flaw::Misplaced(at) if at.hop == 0), "{flaw}");
}

#[test]
fn keys_are_a_part_of_keys_and_values() {
    let flaw = broken(schedule(), |s| {
        // They come where the own keys and values are.
        for rank in [0, 1] {
            let hop = &mut s.ranks[rank][0];
            let moves = hop.sends.iter_mut().chain(&mut hop.receives);
            moves.filter(|moved| moved.from == 0).for_each(|moved| moved.block.owner = 1);
        }
    });
    assert!(matches!(flaw, Flaw::Absent(at) if (at.rank, at.hop) == (0, 0)), "{flaw}");
    let flaw = broken(forward(Strategy::Ring), |s| {
        let hop = &mut s.ranks[1][0];
        hop.frees.push(whole(Part::Key, 1));
    });
    assert!(matches!(flaw, Flaw::Incomplete(at) if at.rank == 1), "{flaw}");
}
