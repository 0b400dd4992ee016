//! How long masks take to classify and count: a million positions over 64 ranks, all pairs of
//! shards, and the views of one tile.

#![expect(clippy::print_stdout, reason = "what a bench is for")]
#![expect(clippy::single_range_in_vec_init, reason = "global positions are ranges")]

use std::hint::black_box;
use std::time::Instant;

use annulus_sequence::{Coverage, Layout, Mask, Rule, View, pairs_between};

const TOKENS: usize = 1 << 20;
const RANKS: usize = 64;

fn masks() -> Vec<(&'static str, Mask)> {
    let causal = Mask::causal;
    // Lengths from 1 to 2039, in no order.
    let lengths: Vec<usize> = (0..1100_usize).map(|i| i * i * 31 % 2039 + 1).collect();
    let documents = Rule::documents(&lengths);
    vec![
        ("full", Mask::full()),
        ("causal", causal()),
        ("window", causal().and(Rule::Window(4096))),
        ("prefix", Mask::full().and(Rule::Prefix(100_000))),
        ("window + sinks", causal().and(Rule::Window(4096)).and(Rule::Sinks(4))),
        ("window + global", causal().and(Rule::Window(4096)).and(Rule::Global(vec![0..64]))),
        ("documents", causal().and(documents.clone())),
        ("window + sinks + documents", {
            causal().and(Rule::Window(512)).and(Rule::Sinks(4)).and(documents)
        }),
        ("strided 1024", causal().and(Rule::Strided { stride: 1024 })),
        ("fixed 128, 8", causal().and(Rule::Fixed { block: 128, columns: 8 })),
    ]
}

fn main() {
    let layouts = [
        Layout::Contiguous,
        Layout::Striped { width: 1 },
        Layout::Striped { width: 128 },
        Layout::Zigzag,
        Layout::Balanced { width: 1024 },
    ];
    println!(
        "{TOKENS} positions, {RANKS} ranks, milliseconds: shard, coverage and pairs of all tiles, views of one"
    );
    for (name, mask) in masks() {
        for layout in layouts {
            let (shards, shard) = timed(|| {
                layout.shard_weighted(&mask, TOKENS, &[1; RANKS]).expect("there are positions")
            });
            let tiles = || shards.iter().flat_map(|q| shards.iter().map(move |k| (q, k)));
            let (needed, coverage) = timed(|| {
                tiles().filter(|(q, k)| mask.coverage_of(q, k) != Coverage::Empty).count()
            });
            let (pairs, count) =
                timed(|| tiles().map(|(q, k)| pairs_between(&mask, q, k)).sum::<u64>());
            let (views, view) = timed(|| View::all(&mask, &shards[9], &shards[9]).len());
            let most = |per: &[u64]| *per.iter().max().unwrap_or(&0) as f64;
            let own: Vec<u64> = (shards.iter())
                .map(|q| shards.iter().map(|k| pairs_between(&mask, q, k)).sum())
                .collect();
            let busiest = most(&own) * RANKS as f64 / pairs as f64;
            println!(
                "{name:<28} {layout:<24} {shard:>8.1} {coverage:>8.1} {count:>8.1} {view:>8.2}  \
                 {needed} tiles, {views} views, busiest {busiest:.3}",
                layout = layout.to_string(),
            );
        }
    }
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let value = black_box(run());
    (value, start.elapsed().as_secs_f64() * 1e3)
}
