//! The keys of `attention` that say how a sequence is split, alone and together.

use annulus_experiment::{LayoutKeys, parse};
use annulus_plan::Plan;
use annulus_sequence::{Exchange, Layout, Route, Strategy};

use crate::common::{plan_of, planned};
use crate::small::edited;

/// `SMALL` on four ranks of one replica, with these lines on how it is split.
fn with(lines: &str) -> String {
    edited("strategy: striped", &format!("strategy: {}", lines.replace("; ", "\n  ")))
}

fn plan(lines: &str) -> Plan {
    plan_of(&with(lines))
}

#[test]
fn words_are_strategies_and_read_back() {
    let megatron = |exchange| Strategy::Megatron { exchange };
    let balanced = |width| Some(LayoutKeys::Balanced { width });
    let cases = [
        ("ring; exchange: p2p", Strategy::Ring, None),
        ("striped; stripe: 8", Strategy::Striped { width: 8 }, None),
        ("striped; layout: striped; stripe: 8", Strategy::Striped { width: 8 }, None),
        ("megatron", megatron(Exchange::PointToPoint), None),
        ("megatron; exchange: all-gather", megatron(Exchange::AllGather), None),
        ("megatron; exchange: a2a", megatron(Exchange::AllToAll), None),
        (
            "megatron; exchange: a2a+p2p; shape: [2, 2]",
            megatron(Exchange::Both { shape: Some([2, 2]) }),
            None,
        ),
        ("usp", Strategy::USP, None),
        ("usp; shape: [4, 1]", Strategy::Usp { shape: Some([4, 1]) }, None),
        ("double-ring; shape: [2, 2]", Strategy::DoubleRing { shape: Some([2, 2]) }, None),
        ("all-gather; groups: 2", Strategy::AllGather { groups: 2 }, None),
        ("ring; layout: zigzag", Strategy::Ring, Some(LayoutKeys::Zigzag)),
        ("ring; layout: striped", Strategy::Ring, Some(LayoutKeys::Striped { width: 1 })),
        ("ulysses; layout: balanced", Strategy::Ulysses, balanced(None)),
        ("halo; layout: balanced; stripe: 64", Strategy::Halo, balanced(Some(64))),
        ("megatron; layout: contiguous", Strategy::MEGATRON, Some(LayoutKeys::Contiguous)),
    ];
    for (lines, strategy, layout) in cases {
        let experiment = plan(lines).experiment;
        assert_eq!(experiment.attention.strategy, strategy, "{lines}");
        assert_eq!(experiment.attention.layout, layout, "{lines}");
        let text = experiment.to_yaml();
        let again = parse("again.yaml", &text, &[]).unwrap_or_else(|p| panic!("{p}\n{text}"));
        assert_eq!(again.attention, experiment.attention, "{text}");
    }
}

#[test]
fn a_layout_is_sharded_by() {
    let of = |lines: &str| {
        let plan = plan(lines);
        (plan.experiment.layout(), plan.ranks[1].positions.clone())
    };
    assert_eq!(of("ring").0, Layout::Contiguous);
    let (zigzag, positions) = of("ring; layout: zigzag");
    assert_eq!((zigzag, positions.runs().len()), (Layout::Zigzag, 2));
    assert_eq!(positions, of("megatron").1);
    // Sixteen blocks for each of four ranks: 12288 / 64.
    assert_eq!(of("usp; layout: balanced").0, Layout::Balanced { width: 192 });
}

#[test]
fn the_way_back_sends_least_unless_it_is_written() {
    // Two query heads to a KV head: 16 · 32 bytes of a row of keys, values and gradients
    // against 2 · (12 · 32 + 8) of queries.
    let back = |lines: &str| plan(lines).groups[0].route.clone();
    assert_eq!((back("ring").how, back("ring").automatic), (Route::Reversed, true));
    assert_eq!(back("ring; backward: queries").how, Route::Queries);
    assert!(!back("ring; backward: queries").automatic);
    let sent = back("striped").sent;
    let of = |how| sent.iter().find(|(way, _)| *way == how).map(|(_, bytes)| *bytes);
    // A quarter of the rows of two heads go to three others, and all the way round to four.
    let (row, rows) = (32, 12288 / 4);
    assert_eq!(of(Route::Reversed), Some(2 * rows * row * (3 * 2 * 4 + 3 * 2 * 4)));
    assert_eq!(back("all-gather").sent.len(), 1);
    let text = with("ring").replace("num_key_value_heads: 2", "num_key_value_heads: 4");
    let plan = plan_of(&text);
    assert_eq!(plan.groups[0].route.how, Route::Queries);
    assert_eq!(plan.experiment.attention.backward, Some(Route::Queries));
}

#[test]
fn wrong_splits() {
    let cases = [
        "ring; exchange: a2a",
        "all-gather; exchange: p2p",
        "megatron; exchange: a2b",
        "ring; shape: [2, 2]",
        "megatron; shape: [2, 2]",
        "usp; shape: [2]",
        "usp; shape: [2, 0]",
        "usp; shape: [3, 2]",
        "double-ring; shape: [3, 2]",
        "usp; shape: 2 x 2",
        "ring; groups: 2",
        "all-gather; groups: 3",
        "all-gather; groups: 0",
        "ring; stripe: 4",
        "ring; layout: zigzag; stripe: 4",
        "striped; layout: zigzag",
        "ring; layout: zig-zag",
        "all-gather; backward: queries",
        "halo; backward: travelling",
        "double-ring; backward: queries",
        "ring; backward: query",
        "auto; exchange: a2a; shape: [2, 2]; groups: 2; stripe: 2; backward: queries",
    ];
    let answer = |lines: &str| {
        let read = parse("small.yaml", &with(lines), &[]);
        read.and_then(planned).map(|_| ()).expect_err(lines)
    };
    let answers = cases.map(|lines| format!("## {lines}\n\n{}\n", answer(lines)));
    insta::assert_snapshot!(answers.join("\n"));
}
