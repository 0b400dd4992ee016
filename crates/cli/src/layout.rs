//! `annulus layout`: who holds what, drawn.

use annulus_sequence::{Heads, Mask, Rule, Schedule, StrategyError, draw_schedule, draw_sharded};
use serde_json::json;

use crate::Done;
use crate::arguments::{Layout, Split};
use crate::failure::{Failure, USAGE};
use crate::print;
use crate::words::Meant;

pub(crate) fn run(arguments: &Layout) -> Done {
    let Layout { strategy, ref words, ranks, tokens, window, hops, json } = *arguments;
    let mask = window.map_or_else(Mask::causal, |width| Mask::causal().and(Rule::Window(width)));
    let meant = words.meant(strategy, tokens, ranks)?;
    // Who holds what does not depend on heads; with one for each rank all strategies are to be seen.
    let split = sharded(&meant, &mask, tokens, ranks, Heads::equal(ranks))?;
    let Meant { strategy, backward, .. } = meant;
    let forward = strategy.forward(&split).map_err(|error| failure(&error))?;
    if json {
        let ranks = forward.positions.iter().enumerate().map(|(rank, positions)| {
            let runs = positions.runs().iter().map(|run| {
                json!({"start": run.start, "step": run.step, "len": run.len, "width": run.width})
            });
            json!({"rank": rank, "runs": runs.collect::<Vec<_>>()})
        });
        let ranks: Vec<_> = ranks.collect();
        let layout = forward.layout.to_string();
        let drawn = json!({"strategy": strategy.name(), "layout": layout, "ranks": ranks});
        print::line(&drawn.to_string())?;
        return Ok(0);
    }
    print::line(&draw_sharded(forward.layout, &mask, &forward.positions))?;
    if hops {
        let backward = strategy.backward(&split, backward);
        let schedules: [Schedule; 2] = [forward, backward.map_err(|error| failure(&error))?];
        for schedule in schedules {
            print::line(&draw_schedule(&schedule))?;
        }
    }
    Ok(0)
}

/// The meaning of the words, where `tokens` positions of these heads can be split so: checked once, before every rank finds out.
pub(crate) fn check(split: &Split, tokens: usize, heads: Heads) -> Result<Meant, Failure> {
    let meant = split.words.meant(split.strategy, tokens, split.ranks)?;
    sharded(&meant, &Mask::causal(), tokens, split.ranks, heads).map(|_| meant)
}

fn sharded(
    meant: &Meant,
    mask: &Mask,
    tokens: usize,
    ranks: usize,
    heads: Heads,
) -> Result<annulus_sequence::Split, Failure> {
    meant.strategy.check(ranks, heads).map_err(|error| failure(&error))?;
    let positions = meant.layout.shard_weighted(mask, tokens, &vec![1; ranks]);
    let positions = positions.map_err(|error| failure(&StrategyError::Shard(error)))?;
    Ok(annulus_sequence::Split::new(mask, meant.layout, positions, heads))
}

fn failure(error: &StrategyError) -> Failure {
    Failure::new(USAGE, error.to_string(), error.hint())
}
