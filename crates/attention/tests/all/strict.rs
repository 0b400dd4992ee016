//! Order-free sums: the same bits under every strategy, backward route, layout and number of ranks, for every mask.

use annulus_sequence::{Heads, Layout, Route, Strategy};

use crate::case::{Case, LIMIT, Outcome};
use crate::columns::{BATCH, LAYOUTS, Seen, masks, ways};

/// Positions of a block; a sequence has twelve.
const BLOCK: usize = 8;
const HEADS: Heads = Heads { query: 4, key_value: 2 };

fn case((strategy, back): (Strategy, Route), layout: Layout, world: usize, seen: &Seen) -> Case {
    let Seen { rules, documents, packed } = seen.clone();
    Case {
        strategy,
        back,
        layout,
        weights: vec![1; world],
        tokens: 12 * BLOCK,
        rules,
        documents,
        packed,
        heads: HEADS,
        batch: BATCH,
        dim: 8,
        plain: false,
        block: Some(BLOCK),
    }
}

#[test]
fn every_mask_has_one_set_of_bits() {
    // All of them are six thousand.
    let nth =
        if std::env::var_os("ANNULUS_TABLE").is_some_and(|all| all == "whole") { 1 } else { 6 };
    let (mut ran, mut wrong) = (0, Vec::new());
    for (number, seen) in masks().iter().enumerate() {
        let one = case((Strategy::Local, Route::default()), Layout::Contiguous, 1, seen);
        let inputs = one.random();
        match one.check(&inputs, &one.dense(&inputs)) {
            Ok(Outcome::Exact(_)) => {}
            other => panic!("{:?}: {other:?}, wanted at most {LIMIT:e} off", seen.rules),
        }
        let wanted = one.bits(&inputs).unwrap().unwrap();
        for world in 2..=4 {
            for (index, way) in ways(world, HEADS).into_iter().enumerate() {
                let place = index + number + world;
                // It keeps scores of all keys, and adds them up as they are.
                if way.0 == Strategy::LiRing || !place.is_multiple_of(nth) {
                    continue;
                }
                let layout = LAYOUTS[(place / nth) % LAYOUTS.len()];
                let case = case(way, layout, world, seen);
                let why = match case.bits(&inputs) {
                    Ok(None) => continue,
                    Ok(Some(bits)) if bits == wanted => {
                        ran += 1;
                        continue;
                    }
                    Ok(Some(_)) => String::from("other bits"),
                    Err(why) => why,
                };
                wrong.push(format!("{way:?} {layout} {world}: {:?}: {why}", seen.rules));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {}", wrong.len(), ran + wrong.len(), wrong.join("\n"));
    assert!(ran > 5000 / nth, "{ran}");
}
