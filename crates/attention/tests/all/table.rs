//! The one table: strategy and exchange × backward route × layout × mask × heads × ranks × length, against dense attention in f64.
//!
//! The whole product is a million cases and more. What runs by default is a part of it that leaves out no strategy in no layout under no
//! mask, and so on for other columns taken together ([`Row::shows`]); `ANNULUS_TABLE=whole` runs all, `ANNULUS_TABLE=40` every
//! fortieth besides.

use std::collections::BTreeMap;
use std::iter::zip;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use annulus_ops::attention::Dense;
use annulus_sequence::{Heads, Route, Strategy};
use parking_lot::Mutex;

use crate::case::{Case, Inputs, Outcome, Processors, TENSORS};
use crate::columns::{self, BATCH, LAYOUTS, Length, RANKS, Seen, heads, masks, name, ways};

/// A case, as its index in each column.
#[derive(Clone, Copy, Debug)]
struct Row {
    world: usize,
    strategy: Strategy,
    back: Route,
    layout: usize,
    mask: usize,
    heads: usize,
    length: Length,
    numbers: Numbers,
}

/// Small numbers in place of what is costly to compare for every row.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    name: usize,
    strategy: usize,
    /// Of the name with the backward route.
    named_way: usize,
    /// Of the strategy with the backward route.
    way: usize,
}

/// Values numbered by their index.
#[derive(Default)]
struct Numbered {
    names: Vec<String>,
    strategies: Vec<Strategy>,
    named_ways: Vec<(String, Route)>,
    ways: Vec<(Strategy, Route)>,
}

impl Numbered {
    fn of(&mut self, strategy: Strategy, back: Route) -> Numbers {
        let name = name(strategy);
        Numbers {
            named_way: place(&mut self.named_ways, (name.clone(), back)),
            name: place(&mut self.names, name),
            strategy: place(&mut self.strategies, strategy),
            way: place(&mut self.ways, (strategy, back)),
        }
    }
}

/// The index of `value`, which is added if it is new.
fn place<T: PartialEq>(all: &mut Vec<T>, value: T) -> usize {
    all.iter().position(|one| *one == value).unwrap_or_else(|| {
        all.push(value);
        all.len() - 1
    })
}

/// Values of columns that are to be seen together: the places of those that were.
#[derive(Default)]
struct Shown(Vec<bool>);

impl Shown {
    /// Records an index; returns whether it is new.
    fn insert(&mut self, place: usize) -> bool {
        if self.0.len() <= place {
            self.0.resize(place + 1, false);
        }
        !std::mem::replace(&mut self.0[place], true)
    }
}

impl Row {
    fn all(masks: usize) -> Vec<Row> {
        let (mut rows, mut numbered) = (Vec::new(), Numbered::default());
        for world in 1..=RANKS {
            for (heads, ratio) in heads(world).into_iter().enumerate() {
                for (strategy, back) in ways(world, ratio) {
                    let numbers = numbered.of(strategy, back);
                    for layout in 0..LAYOUTS.len() {
                        for mask in 0..masks {
                            rows.extend(Length::ALL.map(|length| Row {
                                world,
                                strategy,
                                back,
                                layout,
                                mask,
                                heads,
                                length,
                                numbers,
                            }));
                        }
                    }
                }
            }
        }
        rows
    }
    /// The places of what is to be seen together, of one of `masks`: a layout under a mask, a mask on so many ranks, heads and a length
    /// with a backward route, a backward route under a mask.
    fn shows(self, masks: usize) -> [usize; 5] {
        let Row { world, layout, mask, heads, length, .. } = self;
        let Numbers { name, strategy, named_way, way } = self.numbers;
        let on_ranks = |number: usize| number * RANKS + world - 1;
        [
            (name * LAYOUTS.len() + layout) * masks + mask,
            on_ranks(strategy) * masks + mask,
            on_ranks(way) * columns::heads(world).len() + heads,
            on_ranks(way) * Length::ALL.len() + length as usize,
            named_way * masks + mask,
        ]
    }
    fn case(self, masks: &[Seen], plain: bool) -> Case {
        let Seen { rules, documents, packed } = masks[self.mask].clone();
        Case {
            strategy: self.strategy,
            back: self.back,
            layout: LAYOUTS[self.layout],
            weights: self.length.weights(self.world),
            tokens: self.length.tokens(self.world),
            rules,
            documents,
            packed,
            heads: heads(self.world)[self.heads],
            batch: BATCH,
            dim: 8,
            plain,
            block: None,
            processor: Processors::Cpu,
        }
    }
}

/// In an order that mixes all columns, those that show something together for the first time, and every `nth`; with each, whether it is
/// the first of its strategy in its layout under its mask.
fn chosen(rows: &[Row], masks: usize, nth: Option<usize>) -> Vec<(Row, bool)> {
    // A prime: every row comes once.
    const STRIDE: usize = 982_451_653;
    assert!(!rows.len().is_multiple_of(STRIDE));
    let mut shown: [Shown; 5] = Default::default();
    let mut chosen = Vec::new();
    for index in 0..rows.len() {
        let row = rows[index * STRIDE % rows.len()];
        let mut seen = zip(&mut shown, row.shows(masks));
        let new = [(); 5].map(|()| seen.next().is_some_and(|(shown, place)| shown.insert(place)));
        let due = nth.is_some_and(|nth| index.is_multiple_of(nth));
        if new.contains(&true) || due {
            chosen.push((row, new[0]));
        }
    }
    chosen
}

/// Inputs and what dense attention makes of them, by mask, heads and tokens.
#[derive(Default)]
struct References(Mutex<BTreeMap<(usize, usize, usize, usize), Arc<OnceLock<(Inputs, Dense)>>>>);

impl References {
    fn of(&self, mask: usize, case: &Case) -> Arc<OnceLock<(Inputs, Dense)>> {
        let Heads { query, key_value } = case.heads;
        let key = (mask, query, key_value, case.tokens);
        let one = self.0.lock().entry(key).or_default().clone();
        one.get_or_init(|| {
            let inputs = case.random();
            let dense = case.dense(&inputs);
            (inputs, dense)
        });
        one
    }
}

/// The interval of the cases of the whole table that run.
fn asked() -> Option<usize> {
    let asked = std::env::var("ANNULUS_TABLE").ok()?;
    Some(if asked == "whole" { 1 } else { asked.parse().expect("`whole` or a number") })
}

#[test]
fn every_strategy_is_exact_in_every_layout_under_every_mask() {
    let masks = masks();
    let all = Row::all(masks.len());
    let chosen = chosen(&all, masks.len(), asked());
    let (references, next) = (References::default(), AtomicUsize::new(0));
    let worst = Mutex::new([const { (0.0f64, None) }; 5]);
    let work = || {
        while let Some((row, first)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let case = row.case(&masks, (row.mask + row.layout + row.heads).is_multiple_of(7));
            let reference = references.of(row.mask, &case);
            let (inputs, dense) = reference.get().unwrap();
            let seen = if *first { case.check_visibility() } else { Ok(()) };
            match seen.and_then(|()| case.check(inputs, dense)) {
                Ok(Outcome::Exact(off)) => {
                    let mut worst = worst.lock();
                    for (worst, off) in zip(&mut *worst, off) {
                        if off >= worst.0 {
                            *worst = (off, Some(case.clone()));
                        }
                    }
                }
                Ok(Outcome::Refused(why)) => panic!("{why}: {case:?}"),
                Err(why) => panic!("{why}: {case:?}"),
            }
        }
    };
    let workers = annulus_machine::cores();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    let pairs = chosen.iter().filter(|(_, first)| *first).count();
    println!("{} cases of {}, {pairs} of them with visibility", chosen.len(), all.len());
    for (name, (off, case)) in zip(TENSORS, worst.into_inner()) {
        println!("{name}: {off:.1e} at most, of {case:?}");
    }
    assert!(chosen.len() > 2000);
}
