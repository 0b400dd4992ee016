//! Cases that nobody thought of: any rules together, any lengths, weights, ranks, strategies, heads, backward routes.
//!
//! Proved and exact, or refused in words: nothing else. By default some seconds of always the same cases; `ANNULUS_FUZZ=600` draws new ones
//! for so many seconds. What fails is shrunk and printed as Rust, to be pasted into [`found`].

use std::time::{Duration, Instant};

use annulus_sequence::{Exchange, Heads, Layout, Region, Route, Rule, Strategy};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{BoxedStrategy, Just, Strategy as Draw, any};
use proptest::prop_oneof;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::case::{Case, Outcome, Processors};

/// How many cases are drawn by default, and at a time.
const CASES: u32 = 400;

/// What was found once, and is held since.
fn found() -> Vec<Case> {
    use Rule::*;
    vec![
        // Documents of a batch begin where schedules do not know: their sinks were lost.
        Case {
            strategy: Strategy::Broadcast,
            back: Route::Reversed,
            layout: Layout::Contiguous,
            weights: vec![1, 1],
            tokens: 37,
            rules: vec![Causal, Window(6), Sinks(3)],
            documents: vec![vec![5, 1, 1, 20, 9]],
            packed: true,
            heads: Heads { query: 1, key_value: 1 },
            batch: 1,
            dim: 8,
            plain: false,
            block: None,
            processor: Processors::Cpu,
        },
    ]
}

fn rules(batch: usize) -> BoxedStrategy<Vec<Rule>> {
    let position = || 0_usize..70;
    let rule = prop_oneof![
        3 => Just(Rule::Causal),
        1 => position().prop_map(Rule::Prefix),
        2 => position().prop_map(Rule::Window),
        1 => (0_usize..20, 1_usize..9)
            .prop_map(|(window, dilation)| Rule::Dilated { window, dilation }),
        1 => (1_usize..20).prop_map(|stride| Rule::Strided { stride }),
        1 => (1_usize..20)
            .prop_flat_map(|block| (Just(block), 0..=block))
            .prop_map(|(block, columns)| Rule::Fixed { block, columns }),
        1 => (1_usize..20, any::<bool>()).prop_map(|(block, causal)| {
            let block = |at: usize| at * block..(at + 1) * block;
            let of_keys = |at: usize| Region { queries: block(at), keys: block(at / 2), causal };
            Rule::Regions((0..70).map(of_keys).collect())
        }),
        1 => (0_usize..9).prop_map(Rule::Sinks),
        1 => vec(position().prop_flat_map(|start| (Just(start), start..start + 6)), 0..4)
            .prop_map(|ranges| Rule::Global(ranges.into_iter().map(|(a, b)| a..b).collect())),
        1 => vec(position(), batch).prop_map(Rule::KeyPadding),
    ];
    vec(rule, 0..5).boxed()
}

fn strategies() -> BoxedStrategy<Strategy> {
    let shape = || option::weighted(0.3, [1_usize..5, 1_usize..5]);
    let exchange = prop_oneof![
        Just(Exchange::PointToPoint),
        Just(Exchange::AllGather),
        Just(Exchange::AllToAll),
        shape().prop_map(|shape| Exchange::Both { shape }),
    ];
    prop_oneof![
        1 => Just(Strategy::Local),
        3 => Just(Strategy::Ring),
        3 => (1_usize..6).prop_map(|width| Strategy::Striped { width }),
        3 => exchange.prop_map(|exchange| Strategy::Megatron { exchange }),
        3 => Just(Strategy::Ulysses),
        3 => shape().prop_map(|shape| Strategy::Usp { shape }),
        3 => shape().prop_map(|shape| Strategy::DoubleRing { shape }),
        3 => prop_oneof![3 => Just(1), 1 => 0_usize..5].prop_map(|groups| Strategy::AllGather { groups }),
        3 => Just(Strategy::Broadcast),
        3 => Just(Strategy::Halo),
        3 => Just(Strategy::LiRing),
    ]
    .boxed()
}

/// A layout, usually the strategy's own.
fn layouts() -> BoxedStrategy<Option<Layout>> {
    let width = || 1_usize..9;
    option::of(prop_oneof![
        Just(Layout::Contiguous),
        Just(Layout::Zigzag),
        width().prop_map(|width| Layout::Striped { width }),
        width().prop_map(|width| Layout::Balanced { width }),
    ])
    .boxed()
}

/// Query heads and KV heads: every ratio.
fn heads() -> BoxedStrategy<Heads> {
    let of = |(key_value, group)| Heads { query: key_value * group, key_value };
    (1_usize..6, 1_usize..5).prop_map(of).boxed()
}

/// None, of all batch rows, or by batch row.
fn documents(batch: usize) -> BoxedStrategy<Vec<Vec<usize>>> {
    let lengths = || vec(0_usize..30, 1..8);
    prop_oneof![2 => Just(Vec::new()), 1 => vec(lengths(), 1), 1 => vec(lengths(), batch)].boxed()
}

fn cases() -> impl Draw<Value = Case> {
    let back = prop_oneof![
        3 => Just(Route::Reversed),
        1 => Just(Route::Travelling),
        1 => Just(Route::Direct),
        1 => Just(Route::Queries),
    ];
    let weights = prop_oneof![
        2 => (1_usize..9).prop_map(|world| vec![1; world]),
        1 => vec(0_usize..5, 1..9),
    ];
    let tokens = prop_oneof![1 => 0_usize..12, 3 => 12_usize..72, 1 => 72_usize..140];
    let dim = prop_oneof![Just(8_usize), Just(16), 1_usize..21];
    let of_batch = (1_usize..4)
        .prop_flat_map(|batch| (Just(batch), rules(batch), documents(batch), any::<bool>()));
    let split = (strategies(), back, layouts(), weights);
    (split, tokens, of_batch, heads(), dim, proptest::bool::weighted(0.1)).prop_map(
        |(split, tokens, (batch, rules, documents, packed), heads, dim, plain)| {
            let (strategy, back, layout, weights) = split;
            let layout = layout.unwrap_or(strategy.layout());
            Case {
                packed: packed && !documents.is_empty(),
                strategy,
                back,
                layout,
                weights,
                tokens,
                rules,
                documents,
                heads,
                batch,
                dim,
                plain,
                block: None,
                processor: Processors::Cpu,
            }
        },
    )
}

/// Checks a case; returns whether it ran.
fn held(case: &Case) -> Result<bool, String> {
    if let Some(why) = case.refused() {
        return if why.hint().is_some() {
            Ok(false)
        } else {
            Err(format!("{why}, without a hint"))
        };
    }
    let inputs = case.random();
    case.check_visibility()?;
    match case.check(&inputs, &case.dense(&inputs))? {
        Outcome::Exact(_) => Ok(true),
        Outcome::Refused(why) => Err(format!("{why}, at one time but not at another")),
    }
}

/// The case as Rust source, with the variants of [`Rule`] in scope.
fn as_rust(case: &Case) -> String {
    let enums = [
        ("strategy: ", "Strategy::"),
        ("exchange: ", "Exchange::"),
        ("back: ", "Route::"),
        ("layout: ", "Layout::"),
        ("processor: ", "Processors::"),
    ];
    let text = format!("{case:?}").replace('[', "vec![").replace("Some(vec![", "Some([");
    enums.into_iter().fold(text, |text, (field, of)| text.replace(field, &format!("{field}{of}")))
}

/// The numbers of cases that ran and that were refused.
fn fuzz(runner: &mut TestRunner) -> [usize; 2] {
    let counts = std::cell::Cell::new([0; 2]);
    let result = runner.run(&cases(), |case| match held(&case) {
        Ok(ran) => {
            let [exact, refused] = counts.get();
            counts.set([exact + usize::from(ran), refused + usize::from(!ran)]);
            Ok(())
        }
        Err(why) => Err(TestCaseError::fail(why)),
    });
    match result {
        Ok(()) => counts.get(),
        Err(TestError::Fail(why, case)) => panic!("{why}:\n{}", as_rust(&case)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn anything_is_exact_or_refused() {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let seconds = std::env::var("ANNULUS_FUZZ").ok();
    let seconds = seconds.map(|number| Duration::from_secs(number.parse().expect("seconds")));
    let (began, mut counts) = (Instant::now(), [0, 0]);
    loop {
        let mut runner = match seconds {
            Some(_) => TestRunner::new(config.clone()),
            None => TestRunner::new_with_rng(
                config.clone(),
                TestRng::deterministic_rng(RngAlgorithm::default()),
            ),
        };
        let more = fuzz(&mut runner);
        counts = [counts[0] + more[0], counts[1] + more[1]];
        if seconds.is_none_or(|seconds| began.elapsed() >= seconds) {
            break;
        }
    }
    println!("{} drawn cases exact, {} refused, in {:.0?}", counts[0], counts[1], began.elapsed());
    assert!(counts[0] > counts[1]);
}

/// The text of a case is Rust: the compiler reads it here.
#[test]
fn a_case_is_printed_as_rust() {
    use Rule::{Causal, Global, KeyPadding, Strided};
    macro_rules! same {
        ($case:expr) => {{
            let tight = |text: &str| text.replace([' ', '\n', ','], "");
            assert_eq!(tight(&as_rust(&$case)), tight(stringify!($case)));
        }};
    }
    same!(Case {
        strategy: Strategy::Megatron { exchange: Exchange::Both { shape: Some([2, 3]) } },
        back: Route::Queries,
        layout: Layout::Balanced { width: 2 },
        weights: vec![1, 0],
        tokens: 9,
        rules: vec![
            Causal,
            Global(vec![2..4, 7..9]),
            Strided { stride: 3 },
            KeyPadding(vec![7, 9])
        ],
        documents: vec![vec![5], vec![]],
        packed: false,
        heads: Heads { query: 2, key_value: 1 },
        batch: 2,
        dim: 8,
        plain: true,
        block: None,
        processor: Processors::Cpu,
    });
}

#[test]
fn what_was_found_is_mended() {
    for case in found() {
        assert_eq!(held(&case), Ok(true), "{}", as_rust(&case));
    }
}
