//! Every strategy, mask and number of ranks: proved, and as heavy as its closed form says.

use std::time::{Duration, Instant};

use annulus_sequence::{
    BlockShape, Bytes, Coverage, Mask, Part, Pass, Return, Rule, Schedule, Strategy, pairs_between,
    pairs_per_hop, prove,
};
use proptest::prelude::{
    Just, ProptestConfig, Strategy as Generator, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

const HEADS: usize = 3;
const SHAPE: BlockShape = BlockShape { batch: 2, head_dim: 8, wire: 2, gradient_wire: 4 };
const RETURNS: [Return; 2] = [Return::Travelling, Return::Reversed];
const RINGS: [Strategy; 3] = [Strategy::Ring, Strategy::Striped, Strategy::Megatron];

fn masks() -> impl Generator<Value = Mask> {
    prop_oneof![
        Just(Mask::full()),
        Just(Mask::causal()),
        (0_usize..300).prop_map(|width| Mask::full().and(Rule::Window(width))),
        (0_usize..300).prop_map(|width| Mask::causal().and(Rule::Window(width))),
    ]
}

/// Forward and both backward schedules of a strategy.
fn schedules(strategy: Strategy, mask: &Mask, tokens: usize, world: usize) -> Vec<Schedule> {
    let backward = |how| strategy.backward(mask, tokens, world, HEADS, how);
    let forward = strategy.forward(mask, tokens, world, HEADS);
    let all = [forward].into_iter().chain(RETURNS.map(backward));
    all.collect::<Result<_, _>>().expect("the positions of every test can be dealt")
}

/// The bytes of one shard's keys and values (or their gradients) at `element` bytes per element.
fn block(tokens: usize, world: usize, element: usize) -> u64 {
    (2 * SHAPE.batch * HEADS * (tokens / world) * SHAPE.head_dim * element) as u64
}

/// How often every rank sends a part; the same on all.
fn moves(schedule: &Schedule, part: Part) -> usize {
    let of_rank = |hops: &Vec<annulus_sequence::Hop>| {
        hops.iter().flat_map(|hop| &hop.sends).filter(|sent| sent.buffer.part == part).count()
    };
    let counts: Vec<usize> = schedule.ranks.iter().map(of_rank).collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "ranks differ: {counts:?}");
    counts[0]
}

/// The (queries, keys) of the tiles that are planned though nothing is visible in them.
fn empty_tiles(schedule: &Schedule) -> Vec<(usize, usize)> {
    let tiles = schedule.ranks.iter().flatten().flat_map(|hop| &hop.tiles);
    let empty = |(q, k): &(usize, usize)| {
        let [q, k] = [*q, *k].map(|rank| &schedule.positions[rank]);
        schedule.mask.coverage_of(q, k) == Coverage::Empty
    };
    tiles.map(|tile| (tile.queries, tile.keys)).filter(empty).collect()
}

/// So many random cases; a failure is printed, not written down.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn every_schedule_is_proved(mask in masks(), world in 1_usize..=64, times in 1_usize..6) {
        let tokens = 2 * world * times;
        for strategy in Strategy::ALL {
            if strategy == Strategy::Local && world > 1 {
                continue;
            }
            for schedule in schedules(strategy, &mask, tokens, world) {
                let proof = prove(&schedule);
                prop_assert!(proof.is_ok(), "{}: {}", strategy.name(), proof.unwrap_err());
                let proof = proof.unwrap();
                prop_assert!(schedule.pass == Pass::Backward || empty_tiles(&schedule).is_empty());
                if strategy != Strategy::AllGather {
                    prop_assert!(proof.key_values.iter().all(|alive| *alive <= 2));
                    prop_assert!(proof.gradients.iter().all(|alive| *alive <= 4));
                }
            }
        }
    }

    #[test]
    fn pairs_add_up(mask in masks(), world in 1_usize..9, times in 1_usize..6) {
        let tokens = 2 * world * times;
        let visible = (0..tokens).flat_map(|q| (0..tokens).map(move |k| (q, k)));
        let visible = visible.filter(|(q, k)| mask.allows(*q, *k)).count() as u64;
        for strategy in RINGS.into_iter().chain([Strategy::AllGather]) {
            for schedule in schedules(strategy, &mask, tokens, world) {
                let total: u64 = pairs_per_hop(&schedule).into_iter().flatten().sum();
                prop_assert_eq!(total, visible);
            }
        }
    }
}

#[test]
fn bytes_equal_their_closed_forms() {
    for world in 1..=8 {
        let tokens = 1680;
        let (wire, gradient) = (block(tokens, world, 2), block(tokens, world, 4));
        let (moves, ranks) = (world as u64 - 1, world as u64);
        let [once, home] = if world == 1 { [0, 0] } else { [wire, ranks * gradient] };
        for mask in [Mask::full(), Mask::causal()] {
            for strategy in RINGS {
                let bytes: Vec<_> = schedules(strategy, &mask, tokens, world)
                    .iter()
                    .map(|schedule| Bytes::of(schedule, SHAPE).0)
                    .collect();
                let travelling = if world == 1 { 0 } else { ranks * gradient };
                assert_eq!(bytes[0], vec![moves * wire; world]);
                assert_eq!(bytes[1], vec![moves * wire + travelling; world]);
                assert_eq!(bytes[2], vec![moves * (wire + gradient); world]);
            }
            let gathered = schedules(Strategy::AllGather, &mask, tokens, world);
            let bytes: Vec<_> = gathered.iter().map(|s| Bytes::of(s, SHAPE).0).collect();
            assert_eq!(bytes[0], vec![once; world]);
            assert_eq!(bytes[1], vec![once + home; world]);
        }
    }
}

#[test]
fn rings_make_as_many_moves_as_it_takes() {
    for strategy in RINGS {
        for world in 2..=8 {
            let [forward, travelling, reversed] =
                schedules(strategy, &Mask::causal(), 16 * world, world).try_into().unwrap();
            assert_eq!(moves(&forward, Part::KeyValue), world - 1);
            assert_eq!(prove(&forward).unwrap().hops, world - 1);
            for (schedule, returns) in [(&travelling, world), (&reversed, world - 1)] {
                assert_eq!(moves(schedule, Part::KeyValue), world - 1);
                assert_eq!(moves(schedule, Part::Gradient), returns);
            }
            let to = |schedule: &Schedule| schedule.ranks[1][0].sends[0].to;
            assert_eq!([to(&forward), to(&travelling)], [2 % world; 2]);
            assert_eq!(to(&reversed), 0);
        }
    }
}

#[test]
fn windows_shorten_the_ring_in_the_direction_that_is_near() {
    let (tokens, world) = (80, 8);
    for (window, reach) in [(1, 0), (2, 1), (11, 1), (12, 2), (21, 2), (22, 3), (81, 7)] {
        let mask = Mask::causal().and(Rule::Window(window));
        let [forward, travelling, reversed] =
            schedules(Strategy::Ring, &mask, tokens, world).try_into().unwrap();
        assert_eq!(forward.hops(), reach + 1, "window {window}");
        assert_eq!(moves(&forward, Part::KeyValue), reach);
        let home = usize::from(reach > 0);
        assert_eq!(moves(&travelling, Part::Gradient), reach + home);
        assert_eq!(moves(&reversed, Part::KeyValue), reach);
        assert_eq!(moves(&reversed, Part::Gradient), reach);
    }
}

#[test]
fn blocks_that_see_nothing_cost_nothing_and_still_come_home() {
    // Contiguous and causal: nobody but its owner sees the last block.
    let schedule =
        Strategy::Ring.backward(&Mask::causal(), 64, 4, HEADS, Return::Reversed).unwrap();
    // The first visitor of block j is rank j - 1, which comes before it.
    assert_eq!(empty_tiles(&schedule), [(0, 1), (1, 2), (2, 3)]);
    let total: u64 = pairs_per_hop(&schedule).into_iter().flatten().sum();
    assert_eq!(total, 64 * 65 / 2);
    prove(&schedule).unwrap();
}

#[test]
fn zigzag_is_balanced_hop_by_hop() {
    let (tokens, world) = (96, 4);
    let forward = Strategy::Megatron.forward(&Mask::causal(), tokens, world, HEADS).unwrap();
    let half = (tokens / world / 2) as u64;
    for (hop, pairs) in pairs_per_hop(&forward).iter().enumerate() {
        let each = if hop == 0 { half * (2 * half + 1) } else { 2 * half * half };
        assert_eq!(*pairs, [each; 4]);
    }
}

#[test]
fn a_million_positions_over_64_ranks_are_generated_and_proved_at_once() {
    let mask = Mask::causal().and(Rule::Window(300_000));
    for strategy in Strategy::ALL.into_iter().skip(1) {
        let started = Instant::now();
        for schedule in schedules(strategy, &mask, 1 << 20, 64) {
            prove(&schedule).unwrap();
        }
        let took = started.elapsed();
        println!("{}: three schedules over 64 ranks, proved, in {took:?}", strategy.name());
        assert!(took < Duration::from_secs(2), "{} took {took:?}", strategy.name());
    }
    let forward = Strategy::Striped.forward(&mask, 1 << 20, 64, HEADS).unwrap();
    let visible = pairs_between(&mask, &forward.positions[63], &forward.positions[0]);
    assert!(visible > 0);
}

#[test]
fn names_are_read_back() {
    for strategy in Strategy::ALL {
        assert_eq!(Strategy::from_name(strategy.name()), Some(strategy));
    }
    assert_eq!(Strategy::from_name("zigzag"), None, "a layout, not a strategy");
}

#[test]
fn what_cannot_run_says_why_and_what_would() {
    let error = Strategy::Local.forward(&Mask::causal(), 64, 4, HEADS).unwrap_err();
    assert_eq!(error.to_string(), "`local` runs on 1 rank and cannot share a sequence among 4");
    assert_eq!(
        error.hint().unwrap(),
        "use one rank, or one of `ring`, `striped`, `megatron`, `all-gather`"
    );
    let error = Strategy::Megatron.forward(&Mask::causal(), 0, 8, HEADS).unwrap_err();
    assert_eq!(error.to_string(), "0 tokens cannot be dealt to 8 ranks as zigzag chunks");
}
