//! How long schedules take: a million positions over 64 ranks sharded, generated and proved, the
//! least of several times.

#![expect(clippy::print_stdout, reason = "what a bench is for")]

use std::time::{Duration, Instant};

use annulus_sequence::{Exchange, Heads, Mask, Proof, Route, Rule, Schedule, Strategy, prove};

const TOKENS: usize = 1 << 20;
const RANKS: usize = 64;
const HEADS: Heads = Heads { query: 64, key_value: 8 };
const TIMES: usize = 9;

fn masks() -> Vec<(&'static str, Mask)> {
    // Lengths from 1 to 2039, in no order.
    let lengths: Vec<usize> = (0..1100_usize).map(|i| i * i * 31 % 2039 + 1).collect();
    vec![
        ("full", Mask::full()),
        ("causal", Mask::causal()),
        ("window", Mask::causal().and(Rule::Window(300_000))),
        ("documents", Mask::causal().and(Rule::documents(&lengths))),
    ]
}

/// Every strategy, and the shapes in which most moves or most is cut.
fn strategies() -> impl Iterator<Item = Strategy> {
    let exchanges = Exchange::ALL.into_iter().skip(1);
    let more = [
        Strategy::Striped { width: 128 },
        Strategy::Usp { shape: Some([2, 32]) },
        Strategy::Usp { shape: Some([32, 2]) },
        Strategy::DoubleRing { shape: Some([2, 32]) },
        Strategy::AllGather { groups: 8 },
    ];
    let exchanges = exchanges.map(|exchange| Strategy::Megatron { exchange });
    Strategy::ALL.into_iter().skip(1).chain(exchanges).chain(more)
}

fn main() {
    println!("{TOKENS} positions, {RANKS} ranks: milliseconds to shard, generate and prove");
    let mut worst = Duration::ZERO;
    for (name, mask) in masks() {
        for strategy in strategies() {
            let back = strategy.routes().iter().copied().map(Some);
            for how in [None].into_iter().chain(back) {
                let (took, moves) = least(strategy, &mask, how);
                worst = worst.max(took);
                let way = how.map_or_else(|| "forward".to_owned(), |how| format!("{how:?}"));
                println!(
                    "{name:<10} {strategy:<42} {way:<12} {:>7.1}  {moves} moves",
                    took.as_secs_f64() * 1e3,
                    strategy = format!("{strategy:?}"),
                );
            }
        }
    }
    println!("at most {:.1} ms", worst.as_secs_f64() * 1e3);
}

fn least(strategy: Strategy, mask: &Mask, how: Option<Route>) -> (Duration, usize) {
    let mut moves = 0;
    let mut once = |_| {
        let started = Instant::now();
        let (schedule, _) = proved(strategy, mask, how);
        let took = started.elapsed();
        moves = schedule.listed().iter().flatten().map(|hop| hop.sends.len()).sum();
        took
    };
    let least = (0..TIMES).map(&mut once).min().unwrap_or_default();
    (least, moves)
}

fn proved(strategy: Strategy, mask: &Mask, how: Option<Route>) -> (Schedule, Proof) {
    let split = strategy.split(mask, TOKENS, RANKS, HEADS).expect("it splits");
    let schedule = match how {
        None => strategy.forward(&split),
        Some(how) => strategy.backward(&split, how),
    };
    let schedule = schedule.expect("64 heads are split over any of these");
    let proof = prove(&schedule).expect("generators are right");
    (schedule, proof)
}
