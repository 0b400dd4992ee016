//! Figures of papers, compared with formulas and with walks.

use crate::support::resolved;
use annulus_experiment::binary_bandwidth;
use annulus_sequence::{BlockShape, Heads, Mask, Pass, Schedule, Strategy, Wire, pairs_per_hop};
use annulus_simulate::{Choice, Cluster, Comparison, Link, Load, Overlap, minimal_block, walk};

use crate::support::{experiment, plain};

/// Whether `printed` is `value` rounded to its last digit, a tenth.
fn rounds_to(value: f64, printed: f64) -> bool {
    (value - printed).abs() <= 0.05 + 1e-9
}

/// Ring Attention (arXiv 2310.01889), Table 2: TFLOP/s, GB/s, and in thousands of tokens the
/// minimal block and the minimal sequence per device, as they are printed there.
const RING_TABLE_2: [(&str, f64, f64, f64, f64); 5] = [
    ("A100 NVLink", 312.0, 300.0, 1.0, 6.2),
    ("A100 InfiniBand", 312.0, 12.5, 24.5, 149.5),
    ("TPU v3", 123.0, 112.0, 1.1, 6.6),
    ("TPU v4", 275.0, 268.0, 1.0, 6.2),
    ("TPU v5e", 196.0, 186.0, 1.1, 6.3),
];

#[test]
fn ring_attentions_minimal_blocks() {
    for (host, speed, bandwidth, block, sequence) in RING_TABLE_2 {
        let cluster = plain(8, speed * 1e12, bandwidth * 1e9);
        let choice = Choice::among(&resolved(experiment(&[])), &cluster).expect("eight devices");
        let found = choice.hiding[0].block / 1e3;
        let told = choice.to_json()["hidden_from"][0]["table_2"]["sequence"].as_f64();
        assert_eq!(told, Some(6.0 * choice.hiding[0].block));
        if host == "A100 InfiniBand" {
            // The paper's two numbers of this row do not agree with each other (six times 24.5 is
            // 147) nor with its formula, 24.96 and 149.76; the formula's are within 2 % of them.
            assert!(!rounds_to(found, block) && (found / block - 1.0).abs() < 0.02, "{found}");
            assert!((6.0 * found / sequence - 1.0).abs() < 0.002, "{found}");
        } else {
            assert!(rounds_to(found, block), "{host}: {found} is not {block}");
            assert!(rounds_to(6.0 * found, sequence), "{host}: {} is not {sequence}", 6.0 * found);
        }
    }
}

/// Full attention of 32 heads of 128, keys and values in bf16, `block` tokens on each of 8 ranks.
fn ring_load(block: usize) -> Load {
    let shape = BlockShape { batch: 1, head_dim: 128, wire: Wire::new(2, 2), order_free: false };
    let schedule = forward(Strategy::Ring, &Mask::full(), 8 * block, 8, 32);
    Load::of(&schedule, shape, 1)
}

fn forward(strategy: Strategy, mask: &Mask, tokens: usize, ranks: usize, heads: usize) -> Schedule {
    let split = strategy.split(mask, tokens, ranks, Heads::equal(heads)).expect("it splits");
    strategy.forward(&split).expect("runs")
}

#[test]
fn a_walked_ring_hides_its_messages_from_the_minimal_block_on() {
    for (host, speed, bandwidth, ..) in RING_TABLE_2 {
        let (speed, bandwidth) = (speed * 1e12, bandwidth * 1e9);
        let least = minimal_block(speed, bandwidth);
        let waiting = |block: f64| {
            let cluster = plain(8, speed, bandwidth);
            walk(&ring_load(block as usize), &cluster, &[0.0; 8]).waiting
        };
        let hidden = waiting(least.ceil());
        assert!(hidden.iter().all(|seconds| *seconds < 1e-12), "{host}: {hidden:?}");
        let exposed = waiting(0.95 * least);
        assert!(exposed.iter().all(|seconds| *seconds > 1e-6), "{host}: {exposed:?}");
    }
}

/// Tokens per rank from which a ring with an evenly sharded causal mask hides its messages: 600
/// TFLOP/s forward and 450 backward, keys and values in bf16; query heads per KV head.
#[test]
fn tokens_that_hide_messages_on_usual_links() {
    let tokens = |bandwidth: f64, group: f64, gradient: f64, pass| {
        let speed = if pass == Pass::Forward { 600e12 } else { 450e12 };
        let link = Link { bandwidth: bandwidth * 1e9, latency: 0.0 };
        let overlap = Overlap { speed, link, group, visible: 0.5, element: 2.0, gradient };
        overlap.tokens(pass).round()
    };
    let row = |bandwidth, gradient, pass| {
        [1.0, 4.0, 8.0].map(|group| tokens(bandwidth, group, gradient, pass))
    };
    let (ahead, back) = (Pass::Forward, Pass::Backward);
    assert_eq!(row(450.0, 2.0, ahead), [2667.0, 667.0, 333.0]);
    assert_eq!(row(50.0, 2.0, ahead), [24000.0, 6000.0, 3000.0]);
    assert_eq!(row(55.0, 2.0, ahead), [21818.0, 5455.0, 2727.0]);
    assert_eq!(row(12.5, 2.0, ahead), [96000.0, 24000.0, 12000.0]);
    assert_eq!(row(450.0, 4.0, back), [2400.0, 600.0, 300.0]);
    assert_eq!(row(50.0, 4.0, back), [21600.0, 5400.0, 2700.0]);
    assert_eq!(row(55.0, 2.0, back), [13091.0, 3273.0, 1636.0]);
    assert_eq!(row(12.5, 2.0, back), [57600.0, 14400.0, 7200.0]);
}

/// Pairs of the slowest rank of every hop, summed.
fn slowest(schedule: &Schedule) -> f64 {
    pairs_per_hop(schedule).iter().filter_map(|ranks| ranks.iter().max()).sum::<u64>() as f64
}

/// The time of a causal layer's attention on `ranks` ranks under a strategy, in pairs.
fn attention(strategy: Strategy, tokens: usize, ranks: usize) -> f64 {
    slowest(&forward(strategy, &Mask::causal(), tokens, ranks, 1))
}

/// Striped Attention (arXiv 2311.09431), Tables 3 and 4: theoretical speed-ups of a step over Ring
/// Attention. Model and hardware, ranks of a sequence, and thousands of tokens with the speed-up.
const STRIPED: [(&str, usize, &[(usize, f64)]); 5] = [
    (
        "1B, 8 A100 as 2 x 4",
        4,
        &[(16, 1.46), (32, 1.57), (64, 1.65), (96, 1.68), (128, 1.70), (192, 1.71), (256, 1.72)],
    ),
    (
        "3B, 8 A100 as 2 x 4",
        4,
        &[(16, 1.38), (32, 1.51), (64, 1.61), (96, 1.65), (128, 1.67), (192, 1.69), (256, 1.71)],
    ),
    (
        "7B, 8 A100 as 2 x 4",
        4,
        &[(16, 1.34), (32, 1.47), (64, 1.58), (96, 1.62), (128, 1.65), (192, 1.68), (256, 1.70)],
    ),
    ("1B, 8 A100 as 1 x 8", 8, &[(32, 1.67), (64, 1.76), (128, 1.81), (192, 1.83)]),
    (
        "3B, 16 TPU v4 as 2 x 8",
        8,
        &[(32, 1.45), (128, 1.71), (256, 1.78), (384, 1.81), (512, 1.83), (640, 1.84), (768, 1.84)],
    ),
];

/// The cost of a token outside of attention, in pairs, for which the first speed-up of a row holds.
fn beside(ranks: usize, tokens: usize, speed_up: f64) -> f64 {
    let [ring, striped] = [Strategy::Ring, Strategy::STRIPED].map(|s| attention(s, tokens, ranks));
    (ring - speed_up * striped) / (speed_up - 1.0) * ranks as f64 / tokens as f64
}

fn speed_up(ranks: usize, tokens: usize, beside: f64) -> f64 {
    let [ring, striped] = [Strategy::Ring, Strategy::STRIPED].map(|s| attention(s, tokens, ranks));
    let rest = beside * tokens as f64 / ranks as f64;
    (rest + ring) / (rest + striped)
}

/// The paper does not give attention's part of a step; one number per row does, and the balance of the schedules then gives all others of
/// the row to a hundredth.
#[test]
fn the_balance_behind_striped_attentions_speed_ups() {
    for (row, ranks, figures) in STRIPED {
        let (tokens, first) = figures[0];
        let beside = beside(ranks, tokens * 1024, first);
        for &(tokens, printed) in figures {
            let found = speed_up(ranks, tokens * 1024, beside);
            assert!((found - printed).abs() < 0.01, "{row}, {tokens}k: {found} is not {printed}");
        }
    }
}

/// Attention's part of a step does not depend on the ranks: fitted on 4, it predicts 8.
#[test]
fn speed_ups_on_four_ranks_predict_those_on_eight() {
    let (four, eight) = (STRIPED[0], STRIPED[3]);
    let beside = beside(four.1, four.2[0].0 * 1024, four.2[0].1);
    for &(tokens, printed) in eight.2 {
        let found = speed_up(eight.1, tokens * 1024, beside);
        assert!((found - printed).abs() < 0.01, "{tokens}k: {found} is not {printed}");
    }
}

/// In the limit of long sequences stripes are 2 - 1/P times as fast as chunks, and so are zigzag chunks.
#[test]
fn even_shards_gain_what_they_can() {
    for ranks in [2, 4, 8] {
        let tokens = ranks * 4096;
        let ring = attention(Strategy::Ring, tokens, ranks);
        let limit = 2.0 - 1.0 / ranks as f64;
        for even in [Strategy::STRIPED, Strategy::MEGATRON] {
            let gain = ring / attention(even, tokens, ranks);
            assert!((gain / limit - 1.0).abs() < 1e-3, "{} on {ranks}: {gain}", even.name());
        }
    }
}

fn textbook() -> Comparison {
    Comparison {
        tokens: 1 << 20,
        hidden: 4096,
        head_dim: 128,
        key_value_heads: 32,
        ranks: 8,
        bandwidth: binary_bandwidth("200GB/s").expect("a bandwidth"),
        element: 2,
        window: 4096,
    }
}

#[test]
fn the_textbooks_case() {
    let case = textbook();
    assert_eq!(case.broadcast(), 64.0 * f64::from(1 << 30));
    assert!((case.seconds(case.broadcast()) - 0.32).abs() < 1e-12);
    insta::assert_snapshot!(case.to_text());
}

#[test]
fn closed_forms_are_what_schedules_do() {
    let methods = textbook().methods();
    let find = |name: &str| {
        methods.iter().find(|method| method.name == name).unwrap_or_else(|| panic!("no {name}"))
    };
    let (formula, ring) = (find("Ring Attention"), find("`ring`"));
    assert_eq!((formula.memory, formula.sent), (ring.memory, ring.sent));
    let (formula, kept) = (find("Li et al.'s ring"), find("`li-ring`"));
    assert_eq!((formula.memory, formula.sent), (kept.memory, kept.sent));
    let (formula, gathered) = (find("naive broadcast"), find("`all-gather`"));
    assert_eq!((formula.memory, formula.sent), (gathered.memory, gathered.sent));
    assert_eq!(find("`striped`").causal, "even");
    assert_eq!(ring.causal, "1.87 times uneven");
}

/// Threads that exchange blocks through memory are a cluster like any other.
#[test]
fn threads_are_a_cluster() {
    let threads = Cluster::threads(4, 8);
    assert_eq!((threads.devices(), threads.node_of(3)), (4, 0));
    assert_eq!(threads.rates.forward, 2.0 * Cluster::threads(8, 8).rates.forward);
}
