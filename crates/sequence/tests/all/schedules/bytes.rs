//! Bytes that every rank sends, by formulas written here from the papers' algorithms.

use annulus_sequence::{
    BlockShape, Bytes, Exchange, Heads, Mask, Part, Route, Schedule, Split, Strategy, Wire, prove,
};

use super::{moves, window};

const SHAPE: BlockShape = BlockShape { batch: 2, head_dim: 8, wire: WIRE, order_free: false };
const WIRE: Wire<usize> =
    Wire { query: 2, key_value: 2, output: 2, query_gradient: 4, gradient: 4 };
const TOKENS: usize = 1680;

/// B, d, e and the gradients' e.
const B: u64 = SHAPE.batch as u64;
const D: u64 = SHAPE.head_dim as u64;
const E: u64 = WIRE.query as u64;
const G: u64 = WIRE.gradient as u64;

struct Case {
    mask: Mask,
    world: usize,
    heads: Heads,
}

impl Case {
    fn split(&self, strategy: Strategy) -> Split {
        strategy.split(&self.mask, TOKENS, self.world, self.heads).expect("it splits")
    }
    fn forward(&self, strategy: Strategy) -> Schedule {
        strategy.forward(&self.split(strategy)).expect("it runs")
    }
    fn backward(&self, strategy: Strategy, how: Route) -> Schedule {
        strategy.backward(&self.split(strategy), how).expect("it runs")
    }
    #[track_caller]
    fn check(&self, schedule: &Schedule, each: u64) {
        let found = Bytes::of(schedule, SHAPE).0;
        assert_eq!(found, vec![each; self.world], "{} {:?}", schedule.strategy, schedule.pass);
    }
    /// Rows of one head of a shard, over the whole batch.
    fn rows(&self) -> u64 {
        B * (TOKENS / self.world) as u64
    }
    /// Bytes of a shard's keys and values, and of their gradients.
    fn keys(&self) -> [u64; 2] {
        [E, G].map(|element| 2 * self.rows() * self.heads.key_value as u64 * D * element)
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let heads =
        [(840, 840), (840, 28), (840, 1)].map(|(query, key_value)| Heads { query, key_value });
    let masks = || [Mask::full(), Mask::causal()].into_iter();
    let worlds = (1..=8).flat_map(move |world| heads.map(|heads| (world, heads)));
    worlds.flat_map(move |(world, heads)| masks().map(move |mask| Case { mask, world, heads }))
}

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

#[test]
fn rings() {
    for case in cases() {
        let (hops, ranks) = (case.world as u64 - 1, case.world as u64);
        let [keys, gradients] = case.keys();
        let home = if ranks == 1 { 0 } else { ranks };
        let queries = case.rows() * case.heads.query as u64 * (2 * D * E + 8 + D * G);
        for strategy in [Strategy::Ring, Strategy::STRIPED, Strategy::MEGATRON] {
            case.check(&case.forward(strategy), hops * keys);
            let travelling = case.backward(strategy, Route::Travelling);
            case.check(&travelling, hops * keys + home * gradients);
            case.check(&case.backward(strategy, Route::Reversed), hops * (keys + gradients));
            // Directly go the parts of those that are seen: under a causal mask over contiguous
            // chunks, of those before.
            let direct = case.backward(strategy, Route::Direct);
            let before = strategy == Strategy::Ring && case.mask == Mask::causal();
            let parts = |rank: u64| if before { rank } else { hops };
            let wanted = (0..ranks).map(|rank| hops * keys + parts(rank) * gradients);
            assert_eq!(Bytes::of(&direct, SHAPE).0, wanted.collect::<Vec<_>>());
            case.check(&case.backward(strategy, Route::Queries), hops * queries);
        }
    }
}

/// Keys, then values: as many bytes as together; in memory, all scores of a rank's queries.
#[test]
fn keys_and_values_apart() {
    for case in cases() {
        let (hops, ranks) = (case.world as u64 - 1, case.world as u64);
        let [keys, gradients] = case.keys();
        let home = if ranks == 1 { 0 } else { ranks };
        let forward = case.forward(Strategy::LiRing);
        case.check(&forward, hops * keys);
        for part in [Part::Key, Part::Value] {
            assert_eq!(moves(&forward, part) as u64, hops);
        }
        let reversed = case.backward(Strategy::LiRing, Route::Reversed);
        case.check(&reversed, hops * (keys + gradients));
        let travelling = case.backward(Strategy::LiRing, Route::Travelling);
        case.check(&travelling, hops * keys + home * gradients);
        let alive = prove(&forward).unwrap().alive;
        for (rank, alive) in alive.iter().enumerate() {
            let (own, full) = (TOKENS / case.world, case.mask == Mask::full());
            let seen = own * if full { case.world } else { rank + 1 };
            assert_eq!(alive.scores, case.heads.query * own * seen, "{rank} of {}", case.world);
        }
    }
}

/// Queries travel for fewer bytes exactly where g (2de + 8 + d e') < 2d (e + e'), g query heads to
/// a KV head: with bf16 and f32 gradients only without grouping.
#[test]
fn queries_travel_lighter_where_the_formula_says() {
    for wire in [2, 4] {
        for group in 1..=4 {
            let shape = BlockShape { wire: Wire::new(wire, WIRE.gradient), ..SHAPE };
            let heads = Heads { query: 2 * group, key_value: 2 };
            let case = Case { mask: Mask::causal(), world: 4, heads };
            let bytes = |how| Bytes::of(&case.backward(Strategy::Ring, how), shape).0[0];
            let (e, g) = (wire as u64, group as u64);
            let lighter = g * (2 * D * e + 8 + D * G) < 2 * D * (e + G);
            assert_eq!(bytes(Route::Queries) < bytes(Route::Reversed), lighter);
        }
    }
}

#[test]
fn gathers_and_broadcasts() {
    for case in cases() {
        let hops = case.world as u64 - 1;
        let [keys, gradients] = case.keys();
        let groups = divisors(case.heads.key_value).map(|groups| Strategy::AllGather { groups });
        let megatron = Strategy::Megatron { exchange: Exchange::AllGather };
        for strategy in groups.take(3).chain([Strategy::Broadcast, megatron]) {
            case.check(&case.forward(strategy), hops * keys);
            let backward = case.backward(strategy, Route::default());
            case.check(&backward, hops * (keys + gradients));
        }
    }
}

/// What a rank hands over when heads are split over `lanes` ranks, there and back: every query head
/// once, and KV heads once or, where there are fewer than lanes, as one for each.
fn sharding(case: &Case, lanes: u64) -> [u64; 2] {
    let (query, key_value) = (case.heads.query as u64, case.heads.key_value as u64);
    let shared = key_value.max(lanes);
    let forward = query * (D * E) + 2 * shared * D * E + query * (D * E + 4);
    let there = query * (2 * D * E + 8) + 2 * shared * D * E;
    let back = query * D * G + 2 * shared * D * G;
    [forward, there + back].map(|row| case.rows() * row / lanes * (lanes - 1))
}

#[test]
fn heads_for_positions() {
    // Where heads and lanes divide one another, as in the paper.
    let divide = |case: &Case| {
        let (lanes, heads) = (case.world, case.heads.key_value);
        lanes.is_multiple_of(heads) || heads.is_multiple_of(lanes)
    };
    for case in cases().filter(divide) {
        let [forward, backward] = sharding(&case, case.world as u64);
        for strategy in [Strategy::Ulysses, Strategy::Megatron { exchange: Exchange::AllToAll }] {
            case.check(&case.forward(strategy), forward);
            for how in Route::ALL {
                case.check(&case.backward(strategy, how), backward);
            }
        }
    }
}

#[test]
fn heads_for_positions_and_a_ring() {
    for case in cases() {
        for lanes in divisors(case.world) {
            let heads = case.heads.key_value;
            if !lanes.is_multiple_of(heads) && !heads.is_multiple_of(lanes) {
                continue;
            }
            let shape = Some([lanes, case.world / lanes]);
            let [forward, backward] = sharding(&case, lanes as u64);
            // Blocks of all lanes' rows, a lane's heads of each.
            let heads = 2 * case.rows() * heads.max(lanes) as u64 * D;
            let hops = (case.world / lanes) as u64 - 1;
            let (keys, gradients) = (hops * heads * E, heads * G);
            let home = if hops == 0 { 0 } else { hops + 1 };
            let exchange = Exchange::Both { shape };
            for strategy in [Strategy::Usp { shape }, Strategy::Megatron { exchange }] {
                case.check(&case.forward(strategy), forward + keys);
                let travelling = case.backward(strategy, Route::Travelling);
                case.check(&travelling, backward + keys + home * gradients);
                for how in [Route::Reversed, Route::Direct] {
                    let back = case.backward(strategy, how);
                    case.check(&back, backward + keys + hops * gradients);
                }
                let queries = case.rows() * case.heads.query as u64 * (2 * D * E + 8 + D * G);
                let travel = case.backward(strategy, Route::Queries);
                case.check(&travel, backward + hops * queries);
            }
        }
    }
}

#[test]
fn double_rings() {
    for case in cases() {
        for nodes in divisors(case.world) {
            let inside = case.world / nodes;
            if nodes == 1 || inside == 1 {
                continue;
            }
            let strategy = Strategy::DoubleRing { shape: Some([nodes, inside]) };
            let [keys, gradients] = case.keys();
            let (nodes, inside) = (nodes as u64, inside as u64);
            let hops = nodes * (inside - 1) + (nodes - 1);
            case.check(&case.forward(strategy), hops * keys);
            let travelling = case.backward(strategy, Route::Travelling);
            case.check(&travelling, hops * keys + (nodes * inside + nodes) * gradients);
            let reversed = case.backward(strategy, Route::Reversed);
            case.check(&reversed, hops * (keys + gradients));
        }
    }
}

/// One layer of Llama 3 8B over 8 ranks of 16k positions in bf16, in MiB. Queries that travel take
/// 256 less than in BurstAttention's way, where their gradients go all the way round.
#[test]
fn a_layer_of_llama_3() {
    let case = Case { mask: Mask::causal(), world: 8, heads: Heads { query: 32, key_value: 8 } };
    let split = |s: Strategy| s.split(&case.mask, 8 * 16_384, 8, case.heads).expect("it splits");
    let sent = |schedule: &Schedule, sums| {
        let shape =
            BlockShape { batch: 1, head_dim: 128, wire: Wire::new(2, sums), order_free: false };
        Bytes::of(schedule, shape).0[3] as f64 / f64::from(1 << 20)
    };
    let forward = |s: Strategy| sent(&s.forward(&split(s)).expect("it runs"), 4);
    let back = |s: Strategy, how, sums| sent(&s.backward(&split(s), how).expect("it runs"), sums);
    let (ring, gather) = (Strategy::MEGATRON, Strategy::ALL_GATHER);
    assert_eq!([forward(ring), forward(gather)], [448.0; 2]);
    assert_eq!(back(ring, Route::Travelling, 4), 1472.0);
    assert_eq!(back(ring, Route::Reversed, 2), 896.0);
    assert_eq!(back(gather, Route::Reversed, 2), 896.0);
    assert_eq!(back(ring, Route::Queries, 4), 3868.0 - 256.0);
    // And an f32 of log-sum-exp for every output.
    assert_eq!(forward(Strategy::Ulysses), 280.0 + 1.75);
    assert_eq!(forward(Strategy::Usp { shape: Some([4, 2]) }), 240.0 + 1.5 + 64.0);
}

/// A window of W over contiguous chunks of n: of the t-th chunk before its own, a rank sees the
/// last W - 1 - (t - 1) n rows.
#[test]
fn halos_are_what_a_window_needs() {
    for world in 1..=8 {
        let chunk = TOKENS / world;
        for width in [1, 2, 31, chunk, chunk + 1, chunk + 2, 2 * chunk + 5, TOKENS] {
            let heads = Heads { query: 4, key_value: 2 };
            let case = Case { mask: window(width), world, heads };
            let rows = |rank: usize| -> usize {
                let distances = 1..world - rank;
                distances.map(|t| (width - 1).saturating_sub((t - 1) * chunk).min(chunk)).sum()
            };
            let row = |element| 2 * B * 2 * D * element;
            let expected =
                |row: u64| -> Vec<u64> { (0..world).map(|rank| rows(rank) as u64 * row).collect() };
            let forward = Bytes::of(&case.forward(Strategy::Halo), SHAPE);
            assert_eq!(forward.0, expected(row(E)), "window {width} over {world} ranks");
            let backward = Bytes::of(&case.backward(Strategy::Halo, Route::default()), SHAPE).0;
            let home: Vec<u64> = (0..world)
                .map(|rank| {
                    let distances = 1..=rank;
                    let seen = |t| (width - 1_usize).saturating_sub((t - 1) * chunk).min(chunk);
                    distances.map(seen).sum::<usize>() as u64 * row(G)
                })
                .collect();
            let both = forward.0.iter().zip(home).map(|(keys, home)| keys + home);
            assert_eq!(backward, both.collect::<Vec<_>>(), "window {width} over {world} ranks");
        }
    }
}
