//! Coverage, visibility and pair counts by arithmetic, compared with `Mask::allows`, pair by pair.

use annulus_sequence::{
    Coverage, Layout, Mask, Positions, Rule, Run, Span, Visibility, pairs_between,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Every combination of the rules there are, with windows around the sizes of the runs below.
fn masks() -> impl Strategy<Value = Mask> {
    prop_oneof![
        Just(Mask::full()),
        Just(Mask::causal()),
        (0_usize..70).prop_map(|width| Mask::full().and(Rule::Window(width))),
        (0_usize..70).prop_map(|width| Mask::causal().and(Rule::Window(width))),
        (0_usize..70, 0_usize..9)
            .prop_map(|(a, b)| Mask::full().and(Rule::Window(a)).and(Rule::Window(b))),
    ]
}

fn runs() -> impl Strategy<Value = Run> {
    (0_usize..60, 1_usize..6, 0_usize..9, 1_usize..10).prop_map(|(start, width, gap, len)| Run {
        start,
        step: width + gap,
        len,
        width,
    })
}

/// Up to four runs, one after the other.
fn shards() -> impl Strategy<Value = Positions> {
    proptest::collection::vec(runs(), 0..4).prop_map(|mut runs| {
        let mut end = 0;
        for run in &mut runs {
            run.start = end + run.start / 4;
            end = run.last() + 1;
        }
        Positions::new(runs)
    })
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![
        Just(Layout::Contiguous),
        Just(Layout::Zigzag),
        (1_usize..5).prop_map(|width| Layout::Striped { width }),
        (1_usize..5).prop_map(|width| Layout::Balanced { width }),
    ]
}

/// How many pairs there are, and how many of them are visible.
fn count(mask: &Mask, q: &Positions, k: &Positions) -> (usize, usize) {
    let pairs = q.iter().flat_map(|q| k.iter().map(move |k| (q, k)));
    let visible = pairs.filter(|(q, k)| mask.allows(*q, *k)).count();
    (q.tokens() * k.tokens(), visible)
}

fn classify((all, visible): (usize, usize)) -> Coverage {
    match visible {
        0 => Coverage::Empty,
        _ if visible == all => Coverage::Full,
        _ => Coverage::Partial,
    }
}

/// The indices in the first span; the second must be empty.
fn indices(spans: &[Span; 2]) -> Vec<usize> {
    assert_eq!(spans[1].tokens(), 0, "no rule needs a second span");
    (spans[0].start as usize..spans[0].end as usize).collect()
}

/// A configuration of `cases` random cases, the same in every run; a failure is printed, not written to a file.
fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn coverage_is_exact(mask in masks(), q in shards(), k in shards()) {
        prop_assert_eq!(mask.coverage_of(&q, &k), classify(count(&mask, &q, &k)));
    }

    #[test]
    fn coverage_of_runs_is_exact(mask in masks(), q in runs(), k in runs()) {
        let [one_q, one_k] = [q, k].map(|run| Positions::new(vec![run]));
        prop_assert_eq!(mask.coverage(q, k), classify(count(&mask, &one_q, &one_k)));
    }

    #[test]
    fn pairs_are_counted_exactly(mask in masks(), q in shards(), k in shards()) {
        prop_assert_eq!(pairs_between(&mask, &q, &k), count(&mask, &q, &k).1 as u64);
    }

    #[test]
    fn pairs_of_long_runs_are_counted_exactly(
        mask in masks(), q in runs(), k in runs(), width in 1_usize..3, longer in 20_usize..60,
    ) {
        // Long and narrow: counted by sums instead of row by row.
        let long = |run: Run| Run { len: run.len * longer, width, step: run.step + 1, ..run };
        let [q, k] = [q, k].map(|run| Positions::new(vec![long(run)]));
        prop_assert_eq!(pairs_between(&mask, &q, &k), count(&mask, &q, &k).1 as u64);
    }

    #[test]
    fn visibility_is_exact_both_ways(mask in masks(), q in shards(), k in shards()) {
        let visibility = Visibility::new(&mask, &q, &k);
        let [queries, keys]: [Vec<usize>; 2] = [q.iter().collect(), k.iter().collect()];
        for (spans, q) in visibility.queries.iter().zip(&queries) {
            let seen: Vec<usize> = (0..keys.len()).filter(|i| mask.allows(*q, keys[*i])).collect();
            prop_assert_eq!(indices(spans), seen);
            prop_assert!(spans[0].start <= spans[0].end && spans[0].end as usize <= keys.len());
        }
        for (spans, k) in visibility.keys.iter().zip(&keys) {
            let by: Vec<usize> =
                (0..queries.len()).filter(|i| mask.allows(queries[*i], *k)).collect();
            prop_assert_eq!(indices(spans), by);
            prop_assert!(spans[0].start <= spans[0].end && spans[0].end as usize <= queries.len());
        }
        prop_assert_eq!(visibility.queries.len(), queries.len());
        prop_assert_eq!(visibility.keys.len(), keys.len());
        prop_assert_eq!(visibility.coverage, mask.coverage_of(&q, &k));
    }

    #[test]
    fn ranks_of_positions_are_exact(shard in shards(), position in 0_usize..300) {
        prop_assert_eq!(shard.rank_of(position), shard.iter().filter(|p| *p < position).count());
    }

    #[test]
    fn parts_of_shards_are_exact(shard in shards(), start in 0_usize..300, len in 0_usize..200) {
        let list: Vec<usize> = shard.iter().collect();
        let range = start..start + len;
        let inside: Vec<usize> = list.iter().copied().filter(|at| range.contains(at)).collect();
        prop_assert_eq!(shard.within(range).iter().collect::<Vec<_>>(), inside);
        let rows = start.min(list.len())..(start + len).min(list.len());
        prop_assert_eq!(shard.rows(start..start + len).iter().collect::<Vec<_>>(), &list[rows]);
        prop_assert_eq!(shard.at(start), list.get(start).copied());
    }

    #[test]
    fn every_position_is_sharded_once(
        layout in layouts(), tokens in 1_usize..200,
        weights in proptest::collection::vec(0_usize..5, 1..=16), more in 0_usize..3,
    ) {
        let weights: Vec<usize> = weights.into_iter().map(|weight| weight + more).collect();
        let all: usize = weights.iter().sum();
        prop_assume!(all > 0);
        let mask = Mask::causal().and(Rule::documents(&[30, 50]));
        let shards = layout.shard_weighted(&mask, tokens, &weights).unwrap();
        prop_assert_eq!(shards.len(), weights.len());
        let mut sharded: Vec<usize> = shards.iter().flat_map(Positions::iter).collect();
        sharded.sort_unstable();
        prop_assert_eq!(sharded, (0..tokens).collect::<Vec<_>>());
        for (shard, weight) in shards.iter().zip(&weights) {
            let off = shard.tokens().abs_diff(tokens * weight / all);
            let most = match layout {
                Layout::Contiguous | Layout::Zigzag => 1,
                Layout::Striped { width } => width * weight,
                Layout::Balanced { width } => 2 * width,
            };
            prop_assert!(off <= most, "{} of {tokens} for a weight of {weight}", shard.tokens());
        }
    }

    #[test]
    fn lists_of_positions_are_read_back(shard in shards()) {
        let list: Vec<usize> = shard.iter().collect();
        let read = Positions::from_list(&list).unwrap();
        prop_assert_eq!(read.iter().collect::<Vec<_>>(), list);
    }
}

/// Random sizes seldom meet the edge of a window: here every one of them does.
#[test]
fn small_runs_are_classified_and_counted_exactly_at_every_edge() {
    let shapes = [(1, 1, 1), (1, 1, 3), (1, 2, 3), (1, 3, 2), (2, 3, 2), (2, 5, 3), (3, 4, 2)];
    let runs = || {
        let starts = (0..7).flat_map(|start| shapes.map(|shape| (start, shape)));
        starts.map(|(start, (width, step, len))| Run { start, step, len, width })
    };
    let windows = (0..10).map(Rule::Window);
    let masks =
        windows.flat_map(|rule| [Mask::full(), Mask::causal()].map(|m| m.and(rule.clone())));
    for mask in masks.chain([Mask::full(), Mask::causal()]) {
        for (q, k) in runs().flat_map(|q| runs().map(move |k| (q, k))) {
            let [one_q, one_k] = [q, k].map(|run| Positions::new(vec![run]));
            let (all, visible) = count(&mask, &one_q, &one_k);
            assert_eq!(mask.coverage(q, k), classify((all, visible)), "{mask:?} {q:?} {k:?}");
            assert_eq!(
                pairs_between(&mask, &one_q, &one_k),
                visible as u64,
                "{mask:?} {q:?} {k:?}"
            );
        }
    }
}

#[test]
fn one_rank_holds_the_natural_order() {
    for layout in [
        Layout::Contiguous,
        Layout::Zigzag,
        Layout::Striped { width: 3 },
        Layout::Balanced { width: 3 },
    ] {
        assert_eq!(layout.shard(12, 1).unwrap(), [Positions::all(12)]);
    }
}

#[test]
fn endless_stripes_and_blocks_are_one_shard() {
    for width in [12, 13, usize::MAX] {
        for layout in [Layout::Striped { width }, Layout::Balanced { width }] {
            let shards = layout.shard(12, 3).unwrap();
            let tokens: Vec<usize> = shards.iter().map(Positions::tokens).collect();
            assert_eq!(tokens.iter().max(), Some(&12), "{layout:?}: {tokens:?}");
        }
        let blocks = Layout::Balanced { width }.shard_blocks(&Mask::causal(), 12, 4, &[1, 1]);
        assert_eq!(blocks.unwrap().iter().map(Positions::tokens).sum::<usize>(), 12);
    }
    let heavy = Layout::Striped { width: 5 }.shard_weighted(&Mask::causal(), 12, &[usize::MAX, 7]);
    assert_eq!(heavy.unwrap().iter().map(Positions::tokens).sum::<usize>(), 12);
}

#[test]
fn rows_that_see_nothing_have_empty_spans() {
    let q = Positions::from_list(&[0, 5, 20]).unwrap();
    let k = Positions::from_list(&[4, 5, 30]).unwrap();
    let visibility = Visibility::new(&Mask::causal().and(Rule::Window(3)), &q, &k);
    let first = |spans: &Vec<[Span; 2]>| -> Vec<usize> {
        spans.iter().map(|[span, _]| span.tokens()).collect()
    };
    assert_eq!(first(&visibility.queries), [0, 2, 0]);
    assert_eq!(first(&visibility.keys), [1, 1, 0]);
}

#[test]
fn documents_are_sharded_such_that_all_see_as_much() {
    let lengths: Vec<usize> = (0..200_usize).map(|i| i * i * 31 % 1009 + 1).collect();
    let tokens = lengths.iter().sum::<usize>() / 16 * 16;
    let mask = Mask::causal().and(Rule::documents(&lengths));
    let all = Positions::all(tokens);
    let busiest = |layout: Layout, weights: &[usize]| {
        let shards = layout.shard_weighted(&mask, tokens, weights).unwrap();
        let pairs = shards.iter().map(|shard| pairs_between(&mask, shard, &all));
        let work = pairs.zip(weights).map(|(pairs, weight)| pairs as f64 / *weight as f64);
        let share = pairs_between(&mask, &all, &all) as f64 / weights.iter().sum::<usize>() as f64;
        work.fold(0.0, f64::max) / share
    };
    for weights in [&[1; 8][..], &[1; 5], &[3, 2, 2, 1]] {
        let balanced = busiest(Layout::Balanced { width: 128 }, weights);
        let zigzag = busiest(Layout::Zigzag, weights);
        println!("busiest rank of {weights:?}: balanced {balanced:.3}, zigzag {zigzag:.3}");
        assert!(balanced < 1.02 && balanced < zigzag);
    }
}

#[test]
fn millions_of_positions_are_no_more_work_than_a_few() {
    let shards = Layout::Striped { width: 1 }.shard(1 << 30, 64).unwrap();
    let mask = Mask::causal();
    let total: u64 =
        shards.iter().flat_map(|q| shards.iter().map(|k| pairs_between(&mask, q, k))).sum();
    assert_eq!(total, (1_u64 << 29) * ((1 << 30) + 1));
}
