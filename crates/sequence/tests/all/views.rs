//! Every combination of rules, sharded in every way: coverage, counts and views against
//! `Mask::allows_in`, pair by pair.

#![expect(clippy::unwrap_used, clippy::single_range_in_vec_init, reason = "tests")]

use annulus_sequence::{
    Coverage, Documents, Layout, Mask, Positions, Region, Rule, Side, Span, View, pairs_between,
};

const TOKENS: usize = 23;
const LAYOUTS: [Layout; 5] = [
    Layout::Contiguous,
    Layout::Striped { width: 1 },
    Layout::Striped { width: 3 },
    Layout::Zigzag,
    Layout::Balanced { width: 2 },
];

fn rules() -> Vec<Rule> {
    vec![
        Rule::Causal,
        Rule::Prefix(5),
        Rule::documents(&[4, 0, 9, 6]),
        Rule::KeyPadding(vec![17]),
        Rule::Window(4),
        Rule::Dilated { window: 3, dilation: 2 },
        Rule::Strided { stride: 3 },
        Rule::Fixed { block: 5, columns: 2 },
        Rule::Regions(picture()),
        Rule::Sinks(2),
        Rule::Global(vec![11..13, 6..7]),
    ]
}

/// Text, a picture whose parts see each other, and text again.
fn picture() -> Vec<Region> {
    let region = |queries, keys, causal| Region { queries, keys, causal };
    vec![
        region(0..6, 0..6, true),
        region(6..12, 0..12, false),
        region(12..23, 0..12, false),
        region(12..23, 12..23, true),
    ]
}

/// What one rule cannot show: numbers at their edges, and batch rows that differ.
fn more_rules() -> Vec<Rule> {
    let lengths: [&[usize]; 3] = [&[23], &[1, 1, 20], &[7, 9]];
    vec![
        Rule::Prefix(0),
        Rule::Documents(lengths.map(Documents::of_lengths).to_vec()),
        Rule::documents(&[]),
        Rule::KeyPadding(vec![0, 9, 40]),
        Rule::Window(0),
        Rule::Window(1),
        Rule::Window(usize::MAX),
        Rule::Dilated { window: 0, dilation: 3 },
        Rule::Dilated { window: 2, dilation: 1 },
        Rule::Dilated { window: usize::MAX, dilation: 4 },
        Rule::Dilated { window: 5, dilation: 30 },
        Rule::Strided { stride: 1 },
        Rule::Strided { stride: 4 },
        Rule::Strided { stride: 30 },
        Rule::Fixed { block: 1, columns: 0 },
        Rule::Fixed { block: 4, columns: 4 },
        Rule::Fixed { block: 6, columns: 1 },
        Rule::Fixed { block: usize::MAX, columns: 1 },
        Rule::Fixed { block: 1 << 31, columns: (1 << 31) - 5 },
        Rule::Strided { stride: usize::MAX },
        Rule::Regions(vec![]),
        Rule::Regions(vec![Region { queries: 5..90, keys: 19..20, causal: true }]),
        Rule::Sinks(0),
        Rule::Global(vec![]),
        Rule::Global(vec![0..3, 2..5, 20..30]),
    ]
}

fn mask(rules: &[&Rule]) -> Mask {
    rules.iter().fold(Mask::full(), |mask, rule| mask.and((*rule).clone()))
}

/// The visibility by rows and columns of two shards, in one batch row.
struct Truth(Vec<Vec<bool>>);

impl Truth {
    fn new(mask: &Mask, row: usize, q: &Positions, k: &Positions) -> Truth {
        let keys: Vec<usize> = k.iter().collect();
        let seen = |q: usize| keys.iter().map(|k| mask.allows_in(row, q, *k)).collect();
        Truth(q.iter().map(seen).collect())
    }
    fn visible(&self) -> u64 {
        self.0.iter().flatten().filter(|seen| **seen).count() as u64
    }
}

fn classify(all: u64, visible: u64) -> Coverage {
    match visible {
        0 => Coverage::Empty,
        _ if visible == all => Coverage::Full,
        _ => Coverage::Partial,
    }
}

/// The indices in spans, which are in order, apart from each other, and inside.
fn indices(spans: &[Span; 2], len: usize) -> impl Iterator<Item = usize> + use<> {
    let [one, two] = *spans;
    assert!(one.start <= one.end && two.start <= two.end && two.end as usize <= len.max(1));
    assert!(two.tokens() == 0 || (one.tokens() > 0 && one.end < two.start), "{spans:?}");
    (one.start as usize..one.end as usize).chain(two.start as usize..two.end as usize)
}

fn check_side(side: &Side, shard: &Positions) {
    assert_eq!(side.rows.count, side.positions.tokens());
    let positions: Vec<Option<usize>> = side.rows.iter().map(|row| shard.at(row)).collect();
    assert_eq!(positions, side.positions.iter().map(Some).collect::<Vec<_>>());
}

/// How often the views of batch row `row` show each pair, by rows and by columns.
fn shown(views: &[View], row: usize, q: &Positions, k: &Positions) -> [Vec<Vec<bool>>; 2] {
    let mut shown = [0, 1].map(|_| vec![vec![false; k.tokens()]; q.tokens()]);
    let mut show = |side: usize, query: usize, key: usize| {
        let before = std::mem::replace(&mut shown[side][query][key], true);
        assert!(!before, "the pair of rows {query} and {key} is shown twice");
    };
    for view in views {
        let [queries, keys] =
            [view.queries.rows, view.keys.rows].map(|rows| rows.iter().collect::<Vec<_>>());
        let seen = &view.visibility[row.min(view.visibility.len() - 1)];
        assert_eq!((seen.queries.len(), seen.keys.len()), (queries.len(), keys.len()));
        for (query, spans) in queries.iter().zip(&seen.queries) {
            indices(spans, keys.len()).for_each(|key| show(0, *query, keys[key]));
        }
        for (key, spans) in keys.iter().zip(&seen.keys) {
            indices(spans, queries.len()).for_each(|query| show(1, queries[query], *key));
        }
        let visible = seen.queries.iter().flatten().map(|span| span.tokens() as u64).sum();
        assert_eq!(seen.coverage, classify((queries.len() * keys.len()) as u64, visible));
    }
    shown
}

fn check(mask: &Mask, q: &Positions, k: &Positions) {
    let truths: Vec<Truth> = (0..mask.rows()).map(|row| Truth::new(mask, row, q, k)).collect();
    let all = q.tokens() as u64 * k.tokens() as u64;
    let visible: u64 = truths.iter().map(Truth::visible).sum();
    assert_eq!(pairs_between(mask, q, k), visible);
    assert_eq!(mask.coverage_of(q, k), classify(all * mask.rows() as u64, visible));

    let views = View::all(mask, q, k);
    let sides = Side::of_queries(mask, q);
    assert!(sides.first().is_none_or(|side| side.rows.are_all_of(q.tokens())));
    assert_eq!(sides.is_empty(), q.tokens() == 0);
    for view in &views {
        assert!(sides.contains(&view.queries));
        assert!(view.visibility.iter().any(|seen| seen.coverage != Coverage::Empty));
        check_side(&view.queries, q);
        check_side(&view.keys, k);
    }
    for (row, truth) in truths.iter().enumerate() {
        let [by_rows, by_columns] = shown(&views, row, q, k);
        assert_eq!(by_rows, truth.0, "batch row {row}");
        assert_eq!(by_columns, truth.0, "batch row {row}, by columns");
    }
}

/// Checks every tile of a mask, sharded in every way over up to eight ranks; returns their number.
fn check_all(mask: &Mask, worlds: impl Iterator<Item = usize>) -> usize {
    let mut tiles = 0;
    for (world, layout) in worlds.flat_map(|world| LAYOUTS.map(|layout| (world, layout))) {
        // A weight of zero, and one that is no multiple of another, for worlds that have room.
        let uneven: Vec<usize> = (0..world).map(|rank| [2, 3, 0, 1][rank % 4]).collect();
        for weights in [vec![1; world], uneven] {
            let shards = layout.shard_weighted(mask, TOKENS, &weights).unwrap();
            for (q, k) in shards.iter().flat_map(|q| shards.iter().map(move |k| (q, k))) {
                let checked = std::panic::catch_unwind(|| check(mask, q, k));
                assert!(checked.is_ok(), "{mask:?} {layout:?} {weights:?} {q:?} {k:?}");
                tiles += 1;
            }
        }
    }
    tiles
}

#[test]
fn two_rules_and_fewer() {
    let rules = rules();
    let mut tiles = check_all(&Mask::full(), 1..=8);
    for (index, one) in rules.iter().enumerate() {
        tiles += check_all(&mask(&[one]), 1..=8);
        for other in &rules[index + 1..] {
            tiles += check_all(&mask(&[one, other]), 1..=8);
        }
    }
    println!("{tiles} tiles of at most two rules");
}

#[test]
fn three_rules() {
    let rules = rules();
    let mut tiles = 0;
    for first in 0..rules.len() {
        for second in first + 1..rules.len() {
            for third in &rules[second + 1..] {
                tiles +=
                    check_all(&mask(&[&rules[first], &rules[second], third]), [1, 3].into_iter());
            }
        }
    }
    println!("{tiles} tiles of three rules");
}

#[test]
fn edges_with_everything() {
    let rules = rules();
    let mut tiles = check_all(&mask(&rules.iter().collect::<Vec<_>>()), 1..=8);
    let more = more_rules();
    for one in &more {
        tiles += check_all(&mask(&[one]), [1, 2, 5].into_iter());
        for other in rules.iter().chain(&more) {
            tiles += check_all(&mask(&[one, other, &Rule::Causal]), [1, 4].into_iter());
        }
        for other in rules.iter().chain(&more) {
            tiles += check_all(&mask(&[one, other, &Rule::Window(5)]), [3].into_iter());
        }
    }
    println!("{tiles} tiles of rules at their edges");
}

#[test]
fn common_masks_take_one_view() {
    let window = Mask::causal().and(Rule::Window(6));
    let masks = [
        Mask::full(),
        Mask::causal(),
        Mask::full().and(Rule::Prefix(5)),
        Mask::causal().and(Rule::documents(&[9, 5])),
        Mask::causal().and(Rule::KeyPadding(vec![9, 13])),
        window.clone().and(Rule::documents(&[9, 5])),
        window.clone().and(Rule::Sinks(2)),
        window.clone().and(Rule::Sinks(2)).and(Rule::documents(&[9, 5])),
        Mask::full().and(Rule::Window(4)).and(Rule::Global(vec![0..3])),
        window.and(Rule::Global(vec![0..3])),
    ];
    for mask in &masks {
        for (world, layout) in (1..=4).flat_map(|world| LAYOUTS.map(|layout| (world, layout))) {
            let shards = layout.shard_weighted(mask, TOKENS, &vec![1; world]).unwrap();
            for (q, k) in shards.iter().flat_map(|q| shards.iter().map(move |k| (q, k))) {
                assert!(View::all(mask, q, k).len() <= 1, "{mask:?} {q:?} {k:?}");
            }
        }
    }
}

#[test]
fn strided_patterns_take_a_view_of_near_keys_and_one_of_far_keys_per_residue() {
    let mask = Mask::causal().and(Rule::Strided { stride: 4 });
    let all = Positions::all(64);
    let views = View::all(&mask, &all, &all);
    assert_eq!(Side::of_queries(&mask, &all).len(), 1 + 4);
    assert_eq!(views.len(), 1 + 4);
    assert!(views[0].queries.rows.are_all_of(64) && views[0].keys.rows.are_all_of(64));
    for view in &views[1..] {
        assert_eq!([view.queries.rows.stride, view.keys.rows.stride], [4, 4]);
        assert_eq!(view.queries.rows, view.keys.rows);
    }
    // Zigzag chunks that are multiples of the stride are one progression still.
    let shard = &Layout::Zigzag.shard(64, 4).unwrap()[1];
    assert_eq!(Side::of_queries(&mask, shard).len(), 1 + 4);
}

#[test]
#[should_panic(expected = "mean something")]
fn rules_without_a_meaning_are_a_bug() {
    let _ = Mask::causal().and(Rule::Strided { stride: 0 });
}

#[test]
#[should_panic(expected = "a rule for 2 batch rows in a mask for 3")]
fn batch_rows_must_agree() {
    let _ = Mask::full().and(Rule::KeyPadding(vec![1, 2, 3])).and(Rule::KeyPadding(vec![1, 2]));
}

#[test]
fn a_batch_row_is_a_mask() {
    let mask = more_rules()
        .iter()
        .filter(|rule| matches!(rule, Rule::Documents(_) | Rule::KeyPadding(_)))
        .fold(Mask::causal(), |mask, rule| mask.and(rule.clone()));
    assert_eq!(mask.rows(), 3);
    for (row, q) in (0..3).flat_map(|row| (0..TOKENS).map(move |q| (row, q))) {
        let one = mask.of_row(row);
        assert!((0..TOKENS).all(|k| one.allows(q, k) == mask.allows_in(row, q, k)));
    }
}
