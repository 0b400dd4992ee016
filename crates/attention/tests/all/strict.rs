//! Order-free sums: the same bits under every strategy, backward route, layout and number of ranks, for every mask.

use annulus_sequence::{Heads, Layout, Route, Strategy};

use crate::case::{Case, LIMIT, Outcome, Processors};
use crate::columns::{BATCH, LAYOUTS, Seen, masks, name, ways};

/// The number of positions in a block.
const BLOCK: usize = 8;
const HEADS: Heads = Heads { query: 4, key_value: 2 };

fn case(
    (processor, blocks): (Processors, usize),
    (strategy, back): (Strategy, Route),
    layout: Layout,
    world: usize,
    seen: &Seen,
) -> Case {
    let Seen { rules, documents, packed } = seen.clone();
    Case {
        strategy,
        back,
        layout,
        weights: vec![1; world],
        tokens: blocks * BLOCK,
        rules,
        documents,
        packed,
        heads: HEADS,
        batch: BATCH,
        dim: 8,
        plain: false,
        block: Some(BLOCK),
        processor,
    }
}

#[test]
fn every_mask_has_one_set_of_bits() {
    // All of them are six thousand.
    let nth =
        if std::env::var_os("ANNULUS_TABLE").is_some_and(|all| all == "whole") { 1 } else { 6 };
    let ran = every_mask((Processors::Cpu, 12), |place, _| {
        place.is_multiple_of(nth).then_some(place / nth)
    });
    assert!(ran.len() > 5000 / nth, "{}", ran.len());
}

/// Of all ways those that `chosen` gives a layout by their place and their mask's number: they must have the bits of one rank, and that
/// rank is exact. The strategies of those that ran.
pub(crate) fn every_mask(
    with: (Processors, usize),
    chosen: impl Fn(usize, usize) -> Option<usize>,
) -> Vec<String> {
    let (mut ran, mut wrong) = (Vec::new(), Vec::new());
    for (number, seen) in masks().iter().enumerate() {
        let one = case(with, (Strategy::Local, Route::default()), Layout::Contiguous, 1, seen);
        let inputs = one.random();
        match one.check(&inputs, &one.dense(&inputs)) {
            Ok(Outcome::Exact(_)) => {}
            other => panic!("{:?}: {other:?}, expected at most {LIMIT:e} off", seen.rules),
        }
        let wanted = one.bits(&inputs).unwrap().unwrap();
        for world in 2..=4 {
            for (index, way) in ways(world, HEADS).into_iter().enumerate() {
                // It keeps scores of all keys, and adds them up as they are.
                let own = Some(way).filter(|(strategy, _)| *strategy != Strategy::LiRing);
                let Some(layout) = own.and_then(|_| chosen(index + number + world, number)) else {
                    continue;
                };
                let layout = LAYOUTS[layout % LAYOUTS.len()];
                let why = match case(with, way, layout, world, seen).bits(&inputs) {
                    Ok(None) => continue,
                    Ok(Some(bits)) if bits == wanted => {
                        ran.push(name(way.0));
                        continue;
                    }
                    Ok(Some(_)) => String::from("other bits"),
                    Err(why) => why,
                };
                wrong.push(format!("{way:?} {layout} {world}: {:?}: {why}", seen.rules));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {}", wrong.len(), ran.len(), wrong.join("\n"));
    ran
}
