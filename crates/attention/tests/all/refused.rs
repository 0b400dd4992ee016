//! What cannot run is refused before anything runs, and what is named instead can.

use annulus_sequence::{Exchange, Heads, Layout, Route, Rule, Strategy, StrategyError};

use crate::case::{Case, Processors};
use crate::columns::{RANKS, heads, strategies};

fn case(strategy: Strategy, world: usize, heads: Heads) -> Case {
    Case {
        strategy,
        back: Route::Reversed,
        layout: strategy.layout(),
        weights: vec![1; world],
        tokens: 24,
        rules: vec![Rule::Causal],
        documents: Vec::new(),
        packed: false,
        heads,
        batch: 1,
        dim: 4,
        plain: false,
        block: None,
        processor: Processors::Cpu,
    }
}

/// The reason why the case is refused, which every rank gives.
#[track_caller]
fn refusal(case: &Case) -> StrategyError {
    match case.refused() {
        Some(why) => why,
        None => panic!("not refused: {case:?}"),
    }
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<usize> {
    let words = text.split(|letter: char| !letter.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The strategies that a text names.
fn named(text: &str) -> Vec<Strategy> {
    text.split('`').filter_map(Strategy::from_name).collect()
}

/// Checks that every alternative in the hint of a refusal of `strategy` runs.
#[track_caller]
fn check_alternatives(why: &StrategyError, strategy: Strategy, heads: Heads) {
    let hint = why.hint().unwrap_or_default();
    let runs = |strategy: Strategy, world: usize| strategy.check(world, heads).is_ok();
    let ranks = |lanes: usize| match strategy {
        Strategy::Usp { .. } => runs(Strategy::Usp { shape: Some([lanes, 1]) }, lanes),
        Strategy::Megatron { exchange: Exchange::Both { .. } } => {
            let exchange = Exchange::Both { shape: Some([lanes, 1]) };
            runs(Strategy::Megatron { exchange }, lanes)
        }
        _ => runs(strategy, lanes),
    };
    let right = match *why {
        StrategyError::TooManyRanks { world } => {
            let others = named(&hint);
            others.len() == Strategy::ALL.len() - 1
                && others.iter().all(|other| other.check(world, Heads::equal(world)).is_ok())
        }
        StrategyError::Heads { .. } => {
            !numbers(&hint).is_empty() && numbers(&hint).into_iter().all(ranks)
        }
        StrategyError::Shape { world, .. } => {
            let shapes = numbers(&hint);
            let shaped = |numbers: &[usize]| {
                strategy
                    .shapes(world)
                    .into_iter()
                    .find(|other| other.shape() == Some([numbers[0], numbers[1]]))
            };
            let runs = |numbers| shaped(numbers).is_some_and(|shaped| runs(shaped, world));
            !shapes.is_empty() && shapes.chunks(2).all(runs)
        }
        StrategyError::Groups { .. } => {
            let groups = numbers(&hint);
            !groups.is_empty()
                && groups.into_iter().all(|groups| runs(Strategy::AllGather { groups }, 2))
        }
        StrategyError::Apart { world, most, .. } => world > most,
        StrategyError::Queries { .. } => {
            let others = named(&hint);
            !others.is_empty()
                && others.iter().all(|other| other.routes().contains(&Route::Queries))
        }
        StrategyError::Shard(_) => !hint.is_empty(),
        StrategyError::Sharing { heads: Heads { query, .. } } => {
            let alternatives = numbers(&hint);
            !alternatives.is_empty()
                && alternatives
                    .into_iter()
                    .all(|key_value| Strategy::Ring.check(1, Heads { query, key_value }).is_ok())
        }
    };
    assert!(right, "{why}; hint: {hint}");
}

#[test]
fn what_does_not_run_is_refused_with_what_does() {
    let mut refused = 0;
    for world in 1..=RANKS {
        let odd = [(5, 1), (6, 2), (6, 4)];
        let odd = odd.map(|(query, key_value)| Heads { query, key_value });
        for heads in heads(world).into_iter().chain(odd) {
            let mut all = strategies(world, heads);
            let shape = Some([world, 2]);
            all.extend([Strategy::Usp { shape }, Strategy::DoubleRing { shape }]);
            all.extend([0, heads.key_value + 1].map(|groups| Strategy::AllGather { groups }));
            for strategy in all.into_iter().filter(|one| one.check(world, heads).is_err()) {
                check_alternatives(&refusal(&case(strategy, world, heads)), strategy, heads);
                refused += 1;
            }
        }
    }
    println!("{refused} strategies on ranks and heads that they do not run on");
}

#[test]
fn queries_travel_in_rings_alone() {
    let heads = Heads::equal(4);
    for strategy in Strategy::ALL {
        if strategy != Strategy::Local && !strategy.routes().contains(&Route::Queries) {
            let case = Case { back: Route::Queries, ..case(strategy, 4, heads) };
            check_alternatives(&refusal(&case), strategy, heads);
        }
    }
}

#[test]
fn nothing_to_deal_is_refused() {
    let heads = Heads::equal(2);
    for layout in [Layout::Contiguous, Layout::Zigzag, Layout::Balanced { width: 2 }] {
        let none = Case { tokens: 0, layout, ..case(Strategy::Ring, 2, heads) };
        let nobody = Case { weights: vec![0; 3], layout, ..case(Strategy::Ring, 3, heads) };
        for case in [none, nobody] {
            check_alternatives(&refusal(&case), Strategy::Ring, heads);
        }
    }
}
