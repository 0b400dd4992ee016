//! Single schedules: moves, balance, memory, names and errors.

use annulus_sequence::{
    Exchange, Heads, Mask, Part, Proof, Route, Schedule, Split, Strategy, pairs_per_hop, prove,
};

use super::{blocks, moves, schedules, window};

const HEADS: Heads = Heads { query: 6, key_value: 3 };
const RINGS: [Strategy; 3] = [Strategy::Ring, Strategy::STRIPED, Strategy::MEGATRON];

fn split(strategy: Strategy, mask: &Mask, tokens: usize, world: usize) -> Split {
    strategy.split(mask, tokens, world, HEADS).expect("it splits")
}

fn all<const N: usize>(strategy: Strategy, split: &Split) -> [Schedule; N] {
    schedules(strategy, split).try_into().expect("so many ways")
}

#[test]
fn rings_make_as_many_moves_as_it_takes() {
    for strategy in RINGS {
        for world in 2..=8 {
            let split = split(strategy, &Mask::causal(), 16 * world, world);
            let [forward, travelling, reversed, direct, queries] = all(strategy, &split);
            assert_eq!(moves(&forward, Part::KeyValue), world - 1);
            assert_eq!(prove(&forward).unwrap().hops, world - 1);
            for (schedule, returns) in [(&travelling, world), (&reversed, world - 1)] {
                assert_eq!(moves(schedule, Part::KeyValue), world - 1);
                assert_eq!(moves(schedule, Part::Gradient), returns);
            }
            assert_eq!(moves(&direct, Part::KeyValue), world - 1);
            // Nobody takes up another's part on the way.
            for (rank, hops) in direct.listed().iter().enumerate() {
                let mut sums = hops
                    .iter()
                    .flat_map(|hop| &hop.sends)
                    .filter(|sent| sent.block.part == Part::Gradient);
                assert!(sums.all(|sent| sent.from == rank && sent.to == sent.block.owner));
            }
            assert_eq!(moves(&queries, Part::Query), world - 1);
            assert_eq!(moves(&queries, Part::QueryGradient), world - 1);
            assert_eq!(moves(&queries, Part::KeyValue) + moves(&queries, Part::Gradient), 0);
            let to = |schedule: &Schedule| schedule.hop(1, 0).sends[0].to;
            assert_eq!([to(&forward), to(&travelling)], [2 % world; 2]);
            assert_eq!([to(&reversed), to(&queries)], [0; 2]);
        }
    }
}

/// Two blocks of keys and values beside the own; a sum on its way, one that comes and the own.
#[test]
fn rings_take_as_much_memory_on_any_number_of_ranks() {
    for strategy in RINGS {
        for world in 3..=8 {
            let split = split(strategy, &Mask::causal(), 16 * world, world);
            let (keys, queries) = (16 * HEADS.key_value, 16 * HEADS.query);
            for schedule in schedules(strategy, &split) {
                let Proof { alive, made, .. } = prove(&schedule).unwrap();
                for alive in alive {
                    assert!(alive.key_values <= 2 * keys && alive.gradients <= 4 * keys);
                    assert!(alive.queries <= 2 * queries && alive.query_gradients <= 4 * queries);
                }
                assert!(
                    made.iter().all(|made| made.gradients <= 3 * keys),
                    "{world} {made:?} {keys}"
                );
            }
        }
    }
}

#[test]
fn groups_of_heads_bound_what_is_gathered() {
    let alive = |groups| {
        let strategy = Strategy::AllGather { groups };
        let split = split(strategy, &Mask::causal(), 64, 4);
        let forward = strategy.forward(&split).unwrap();
        prove(&forward).unwrap().alive[0].key_values
    };
    assert_eq!([alive(1), alive(3)], [3 * 16 * 3, 2 * 3 * 16]);
}

#[test]
fn windows_shorten_the_ring_in_the_direction_that_is_near() {
    let (tokens, world) = (80, 8);
    for (width, reach) in [(1, 0), (2, 1), (11, 1), (12, 2), (21, 2), (22, 3), (81, 7)] {
        let split = split(Strategy::Ring, &window(width), tokens, world);
        let [forward, travelling, reversed, direct, queries] = all(Strategy::Ring, &split);
        assert_eq!(forward.hops(), reach + 1, "window {width}");
        assert_eq!(moves(&forward, Part::KeyValue), reach);
        let home = usize::from(reach > 0);
        assert_eq!(moves(&travelling, Part::Gradient), reach + home);
        assert_eq!(moves(&reversed, Part::KeyValue), reach);
        assert_eq!(moves(&reversed, Part::Gradient), reach);
        assert_eq!(moves(&direct, Part::KeyValue), reach);
        assert_eq!(moves(&queries, Part::QueryGradient), reach);
    }
}

/// Over zigzag chunks a window shows the end of one neighbour and the beginning of the other.
#[test]
fn halos_of_zigzag_chunks_go_both_ways() {
    let split = split(Strategy::MEGATRON, &window(4), 64, 4);
    let halo = Strategy::Halo.forward(&split).unwrap();
    prove(&halo).unwrap();
    let rows = |rank: usize| -> Vec<(usize, usize, usize)> {
        let sends = halo.of_rank(rank).into_iter().flat_map(|hop| hop.sends);
        sends.map(|sent| (sent.to, sent.block.rows.start, sent.block.rows.end)).collect()
    };
    assert_eq!(rows(1), [(2, 5, 8), (0, 13, 16)]);
    // Rank 0 holds both ends, rank 3 the fold.
    assert_eq!([rows(0), rows(3)], [vec![(1, 5, 8)], vec![(2, 13, 16)]]);
}

#[test]
fn blocks_that_see_nothing_cost_nothing_and_still_come_home() {
    // Contiguous and causal: nobody but its owner sees the last block.
    let split = split(Strategy::Ring, &Mask::causal(), 64, 4);
    let schedule = Strategy::Ring.backward(&split, Route::Reversed).unwrap();
    // The first visitor of block j is rank j - 1, which comes before it.
    let zeros = schedule.listed().into_iter().flatten().flat_map(|hop| hop.zeros);
    assert_eq!(zeros.map(|zeros| zeros.owner).collect::<Vec<_>>(), [1, 2, 3]);
    let total: u64 = pairs_per_hop(&schedule).into_iter().flatten().sum();
    assert_eq!(total, 6 * 64 * 65 / 2);
    prove(&schedule).unwrap();
}

#[test]
fn zigzag_is_balanced_hop_by_hop() {
    let split = split(Strategy::MEGATRON, &Mask::causal(), 96, 4);
    let forward = Strategy::MEGATRON.forward(&split).unwrap();
    let half = 96 / 4 / 2;
    for (hop, pairs) in pairs_per_hop(&forward).iter().enumerate() {
        let each = if hop == 0 { half * (2 * half + 1) } else { 2 * half * half };
        assert_eq!(*pairs, [6 * each; 4]);
    }
}

/// With zigzag over all ranks also the stations of a product, and the nodes of a double ring, have
/// as much to do.
#[test]
fn products_are_balanced_hop_by_hop() {
    for strategy in [
        Strategy::Usp { shape: Some([2, 4]) },
        Strategy::Usp { shape: Some([3, 2]) },
        Strategy::Megatron { exchange: Exchange::Both { shape: Some([2, 2]) } },
        Strategy::DoubleRing { shape: Some([2, 3]) },
        Strategy::Megatron { exchange: Exchange::AllToAll },
    ] {
        let world = (1..=8).rev().find(|world| strategy.check(*world, HEADS).is_ok()).unwrap();
        let split = split(strategy, &Mask::causal(), 16 * world, world);
        for pairs in pairs_per_hop(&strategy.forward(&split).unwrap()) {
            assert!(pairs.iter().all(|rank| *rank == pairs[0]), "{strategy:?}: {pairs:?}");
        }
    }
}

/// Three ranks share six query heads and two KV heads: the middle one needs both.
#[test]
fn heads_that_do_not_line_up_are_cut_where_groups_end() {
    let heads = Heads { query: 6, key_value: 2 };
    let split = Strategy::Ulysses.split(&Mask::causal(), 24, 3, heads).unwrap();
    let forward = Strategy::Ulysses.forward(&split).unwrap();
    prove(&forward).unwrap();
    let to = |rank| {
        let sends = forward.hop(0, 0).sends.into_iter().filter(move |sent| sent.to == rank);
        sends.map(|sent| (sent.block.part, sent.block.heads.start, sent.block.heads.end))
    };
    assert_eq!(to(1).collect::<Vec<_>>(), [(Part::Query, 2, 4), (Part::KeyValue, 0, 2)]);
    assert_eq!(to(2).collect::<Vec<_>>(), [(Part::Query, 4, 6), (Part::KeyValue, 1, 2)]);
    let home: Vec<_> =
        blocks(&forward.of_rank(1)).filter(|block| block.part == Part::Output).collect();
    assert_eq!(home.len(), 4, "two heads for each of two others, which use different keys");
}

/// The slow move between nodes is under way while the node's own ring goes round.
#[test]
fn double_rings_give_slow_links_a_whole_round() {
    let strategy = Strategy::DoubleRing { shape: Some([2, 3]) };
    let split = split(strategy, &Mask::full(), 96, 6);
    let forward = strategy.forward(&split).unwrap();
    let sends = forward.hop(0, 0).sends.into_iter().map(|sent| (sent.to, sent.hops));
    assert_eq!(sends.collect::<Vec<_>>(), [(1, 1), (3, 3)]);
    for how in [Route::Travelling, Route::Reversed] {
        let backward = strategy.backward(&split, how).unwrap();
        let sends = backward.of_rank(0).into_iter().flat_map(|hop| hop.sends);
        let late = sends.filter(|sent| sent.to == 3 && sent.hops == 3);
        let parts: Vec<Part> = late.map(|sent| sent.block.part).collect();
        let gradients = usize::from(how == Route::Travelling);
        assert_eq!(parts.iter().filter(|part| **part == Part::Gradient).count(), gradients);
        assert!(parts.contains(&Part::KeyValue));
    }
}

#[test]
fn names_are_read_back() {
    for strategy in Strategy::ALL {
        assert_eq!(Strategy::from_name(strategy.name()), Some(strategy));
    }
    for exchange in Exchange::ALL {
        assert_eq!(Exchange::from_name(exchange.name()), Some(exchange));
    }
    assert_eq!(Strategy::from_name("zigzag"), None, "a layout, not a strategy");
}

#[test]
fn what_cannot_run_says_why_and_what_would() {
    let refused = |strategy: Strategy, world| {
        let error = strategy.split(&Mask::causal(), 96, world, HEADS).unwrap_err();
        (error.to_string(), error.hint().unwrap())
    };
    let said = |error: &str, hint: &str| (error.to_owned(), hint.to_owned());
    assert_eq!(
        refused(Strategy::Local, 4),
        said(
            "`local` runs on 1 rank and cannot share a sequence among 4",
            "use one rank, or one of `ring`, `striped`, `megatron`, `ulysses`, `usp`, \
             `double-ring`, `all-gather`, `broadcast`, `halo`, `li-ring`"
        )
    );
    assert_eq!(
        refused(Strategy::Ulysses, 4),
        said(
            "`ulysses` cannot split 6 query heads over 4 ranks",
            "use 1, 2, 3, 6 ranks, or `usp` with one of those as its first number"
        )
    );
    assert_eq!(
        refused(Strategy::Usp { shape: Some([4, 2]) }, 8),
        said(
            "`usp` cannot split 6 query heads over 4 ranks",
            "heads can be exchanged among 1, 2, 3, 6 ranks"
        )
    );
    assert_eq!(
        refused(Strategy::DoubleRing { shape: Some([2, 3]) }, 8),
        said(
            "`double-ring` of shape [2, 3] is 6 ranks, but a sequence has 8",
            "use one of [1, 8], [2, 4], [4, 2], [8, 1]"
        )
    );
    assert_eq!(
        refused(Strategy::AllGather { groups: 2 }, 8),
        said("3 KV heads cannot be gathered in 2 equal groups", "use 1, 3")
    );
    let split = split(Strategy::Halo, &Mask::causal(), 96, 4);
    let error = Strategy::Halo.backward(&split, Route::Queries).unwrap_err();
    assert_eq!(error.to_string(), "queries cannot travel in `halo`: it has no ring");
    assert_eq!(
        error.hint().unwrap(),
        "let keys and values travel, or use one of `ring`, `striped`, `megatron`, `ulysses`, `usp`"
    );
}

/// Of every strategy that is another under its own name, so that what is known of one is known of both.
#[test]
fn plain_strategies_have_the_same_schedules() {
    let mut others = 0;
    for world in [4, 6, 12] {
        for strategy in Strategy::variants(world, Heads::equal(12)) {
            let plain = strategy.plain();
            assert_eq!((plain.layout(), plain.routes()), (strategy.layout(), strategy.routes()));
            let split = |strategy: Strategy| {
                strategy.split(&Mask::causal(), 24 * world, world, Heads::equal(12))
            };
            let (Ok(own), Ok(of_plain)) = (split(strategy), split(plain)) else { continue };
            let hops = |strategy, split| {
                let all = schedules(strategy, split).into_iter();
                all.map(|schedule| schedule.listed()).collect::<Vec<_>>()
            };
            assert_eq!(hops(strategy, &own), hops(plain, &of_plain), "{strategy:?}");
            others += usize::from(plain != strategy);
        }
    }
    assert!(others > 6, "{others}");
}
