//! Random cases: every schedule is proved, and computes what is visible.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_sequence::{
    Coverage, Flaw, Heads, Layout, Mask, Positions, Proof, Route, Rule, Schedule, Split, Strategy,
    pairs_per_hop, prove, prove_alike, prove_each,
};
use proptest::prelude::{
    Just, ProptestConfig, Strategy as Generator, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use proptest::test_runner::RngSeed;

use super::{schedules, variants, window};

const HEADS: [Heads; 5] = [
    Heads { query: 4, key_value: 4 },
    Heads { query: 8, key_value: 2 },
    Heads { query: 6, key_value: 1 },
    Heads { query: 12, key_value: 3 },
    Heads { query: 12, key_value: 4 },
];

fn masks() -> impl Generator<Value = Mask> {
    prop_oneof![
        Just(Mask::full()),
        Just(Mask::causal()),
        (0_usize..300).prop_map(|width| Mask::full().and(Rule::Window(width))),
        (0_usize..300).prop_map(window),
    ]
}

/// Shards of any length, also of none, that shard `0 .. tokens`.
fn uneven(lengths: &[usize]) -> Vec<Positions> {
    let mut start = 0;
    let shard = |len: &usize| {
        start += len;
        let list: Vec<usize> = (start - len..start).collect();
        Positions::from_list(&list).expect("lists of neighbours rise")
    };
    lengths.iter().map(shard).collect()
}

/// Proves a schedule rank by rank, and with alike ranks together; both must agree.
fn proved(schedule: &Schedule) -> Result<Proof, Flaw> {
    let (each, alike) = (prove_each(schedule), prove_alike(schedule));
    assert_eq!(each, alike, "{} {:?} {}", schedule.strategy, schedule.pass, schedule.layout);
    each
}

/// A configuration of `cases` random cases, the same in every run; a failure is printed, not written to a file.
fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

fn has_empty_tiles(schedule: &Schedule) -> bool {
    let hops = schedule.listed();
    let mut tiles = hops.iter().flatten().flat_map(|hop| hop.tiles.iter());
    tiles.any(|tile| {
        let [q, k] = [tile.queries, tile.keys].map(|block| &schedule.positions[block.owner]);
        schedule.mask.coverage_of(q, k) == Coverage::Empty
    })
}

/// The schedule with every tile listed separately, none shared between ranks.
fn one_by_one(schedule: &Schedule) -> Schedule {
    let mut listed = schedule.listed();
    listed.iter_mut().flatten().for_each(|hop| hop.tiles = hop.tiles.iter().collect());
    Schedule { generator: Arc::new(listed), ..schedule.clone() }
}

/// Of 48 ranks that all compute the same tiles with other heads: their list is shared.
#[test]
fn tiles_that_ranks_share_are_listed_once() {
    let (world, heads) = (48, Heads::equal(48));
    let split = Strategy::Ulysses.split(&Mask::full(), world, world, heads).unwrap();
    let listed = Strategy::Ulysses.forward(&split).unwrap().listed();
    let hops = || listed.iter().flatten();
    let tiles: usize = hops().map(|hop| hop.tiles.len()).sum();
    assert_eq!(tiles, world * world * world);
    let lists = hops().flat_map(|hop| hop.tiles.meetings()).map(|met| met.keys().as_ptr());
    let lists: Vec<_> = lists.collect();
    assert_eq!(lists.len(), world * world);
    assert_eq!(lists.into_iter().collect::<BTreeSet<_>>().len(), 1);
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn every_schedule_is_proved(
        mask in masks(), world in 1_usize..=24, times in 1_usize..4, heads in 0..HEADS.len()
    ) {
        let (tokens, heads) = (6 * world * times, HEADS[heads]);
        for strategy in variants(world, heads) {
            let split = strategy.split(&mask, tokens, world, heads).unwrap();
            for schedule in schedules(strategy, &split) {
                let proof = proved(&schedule);
                prop_assert!(proof.is_ok(), "{strategy:?}: {}", proof.unwrap_err());
                prop_assert!(!has_empty_tiles(&schedule));
            }
        }
    }

    #[test]
    fn shards_of_any_length_are_proved(
        mask in masks(), lengths in proptest::collection::vec(0_usize..5, 1..9),
        heads in 0..HEADS.len()
    ) {
        let shards = uneven(&lengths);
        for strategy in variants(shards.len(), HEADS[heads]) {
            let split = Split::new(&mask, Layout::Contiguous, shards.clone(), HEADS[heads]);
            for schedule in schedules(strategy, &split) {
                let proof = proved(&schedule);
                prop_assert!(proof.is_ok(), "{strategy:?}: {}", proof.unwrap_err());
            }
        }
    }

    #[test]
    fn pairs_add_up(
        mask in masks(), world in 1_usize..9, times in 1_usize..4, heads in 0..HEADS.len()
    ) {
        let (tokens, heads) = (6 * world * times, HEADS[heads]);
        let visible = (0..tokens).flat_map(|q| (0..tokens).map(move |k| (q, k)));
        let visible = visible.filter(|(q, k)| mask.allows(*q, *k)).count();
        for strategy in variants(world, heads) {
            let split = strategy.split(&mask, tokens, world, heads).unwrap();
            for schedule in schedules(strategy, &split) {
                let listed = one_by_one(&schedule);
                prop_assert_eq!(listed.listed(), schedule.listed());
                prop_assert_eq!(prove(&listed), proved(&schedule));
                prop_assert_eq!(pairs_per_hop(&listed), pairs_per_hop(&schedule));
                let total: u64 = pairs_per_hop(&schedule).into_iter().flatten().sum();
                prop_assert_eq!(total, (visible * heads.query) as u64, "{:?}", strategy);
            }
        }
    }
}

/// All worlds up to eight, all variants, masks and groups: how many schedules there are is printed.
#[test]
fn all_small_worlds_are_proved() {
    let mut count = 0;
    for world in 1..=8 {
        for heads in HEADS {
            for mask in [Mask::full(), Mask::causal(), window(1), window(17), window(60)] {
                for strategy in variants(world, heads) {
                    let split = strategy.split(&mask, 48 * world, world, heads).unwrap();
                    for schedule in schedules(strategy, &split) {
                        proved(&schedule).unwrap_or_else(|flaw| panic!("{strategy:?}: {flaw}"));
                        count += 1;
                    }
                }
            }
        }
    }
    println!("{count} schedules proved");
    assert!(count > 5_000, "{count}");
}

/// Numbers of ranks beyond the smallest: primes, powers and what has many divisors. `ANNULUS_TABLE=whole` takes all up to 64.
const LARGE_WORLDS: [usize; 9] = [25, 27, 30, 32, 36, 37, 48, 61, 64];

/// Many numbers of ranks, over every layout, also where positions do not divide.
#[test]
fn ranks_that_are_alike_are_proved_together_as_they_are_apart() {
    let mut proofs = 0;
    let layouts = [
        Layout::Contiguous,
        Layout::Zigzag,
        Layout::Striped { width: 1 },
        Layout::Striped { width: 2 },
        Layout::Balanced { width: 2 },
    ];
    let documents = |tokens: usize| Mask::causal().and(Rule::documents(&[tokens / 3, tokens / 2]));
    let whole = std::env::var_os("ANNULUS_TABLE").is_some_and(|all| all == "whole");
    let large: Vec<usize> = if whole { (25..=64).collect() } else { LARGE_WORLDS.to_vec() };
    for world in (1..=24).chain(large) {
        let heads = HEADS[world % HEADS.len()];
        let tokens = if world % 5 == 0 { 4 * world + 3 } else { 4 * world };
        let masks = [Mask::full(), Mask::causal(), window(6), documents(tokens)];
        for (number, strategy) in variants(world, heads).into_iter().enumerate() {
            // All together would be a thousand schedules of 64 ranks.
            let (layout, mask) =
                (layouts[(number + world) % layouts.len()], &masks[(number / 2 + world) % 4]);
            let positions = layout.shard_weighted(mask, tokens, &vec![1; world]).unwrap();
            let split = Split::new(mask, layout, positions, heads);
            for schedule in schedules(strategy, &split) {
                proved(&schedule).unwrap_or_else(|flaw| panic!("{strategy:?}: {flaw}"));
                proofs += 1;
            }
        }
    }
    println!("{proofs} schedules proved twice");
    assert!(proofs > 2_000, "{proofs}");
}

/// The time without competition for the core: the least of several times.
#[test]
fn a_million_positions_over_64_ranks_are_generated_and_proved_at_once() {
    let heads = Heads { query: 64, key_value: 8 };
    let mut worst = Duration::ZERO;
    for mask in [Mask::causal(), window(300_000)] {
        for strategy in Strategy::ALL.into_iter().skip(1) {
            let at_once = |how: Option<Route>| {
                let started = Instant::now();
                let split = strategy.split(&mask, 1 << 20, 64, heads).unwrap();
                let schedule = match how {
                    None => strategy.forward(&split),
                    Some(how) => strategy.backward(&split, how),
                };
                prove(&schedule.unwrap()).unwrap();
                started.elapsed()
            };
            let ways = strategy.routes().iter().copied().map(Some);
            for how in [None].into_iter().chain(ways) {
                let took = (0..5).map(|_| at_once(how)).min().unwrap();
                println!("{} {how:?}: {took:?}", strategy.name());
                worst = worst.max(took);
            }
        }
    }
    println!("at most {worst:?}");
    assert!(worst < Duration::from_secs(1), "{worst:?}");
}
