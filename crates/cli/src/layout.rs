//! `annulus layout`: who holds what, drawn.

use annulus_sequence::{
    Heads, Mask, Return, Rule, Schedule, StrategyError, draw_layout, draw_schedule,
};
use serde_json::json;

use crate::Done;
use crate::arguments::{Layout, Split};
use crate::failure::{Failure, USAGE};
use crate::print;

pub(crate) fn run(arguments: &Layout) -> Done {
    let Layout { strategy, ranks, tokens, window, hops, json } = *arguments;
    let mask = window.map_or_else(Mask::causal, |width| Mask::causal().and(Rule::Window(width)));
    // Who holds what does not depend on heads; with one for each rank all strategies are to be seen.
    let split = strategy.split(&mask, tokens, ranks, Heads::equal(ranks));
    let split = split.map_err(|error| failure(&error))?;
    let forward = strategy.forward(&split).map_err(|error| failure(&error))?;
    if json {
        let ranks = forward.positions.iter().enumerate().map(|(rank, positions)| {
            let runs = positions.runs().iter().map(|run| {
                json!({"start": run.start, "step": run.step, "len": run.len, "width": run.width})
            });
            json!({"rank": rank, "runs": runs.collect::<Vec<_>>()})
        });
        let ranks: Vec<_> = ranks.collect();
        print::line(&json!({"strategy": strategy.name(), "ranks": ranks}).to_string());
        return Ok(0);
    }
    let drawn = draw_layout(forward.layout, &mask, tokens, ranks)
        .map_err(|error| failure(&StrategyError::Deal(error)))?;
    print::line(&drawn);
    if hops {
        let backward = strategy.backward(&split, Return::default());
        let schedules: [Schedule; 2] = [forward, backward.map_err(|error| failure(&error))?];
        for schedule in schedules {
            print::line(&draw_schedule(&schedule));
        }
    }
    Ok(0)
}

/// Whether `tokens` positions of so many heads can be split so: asked once, before every rank finds out.
pub(crate) fn check(split: &Split, tokens: usize, heads: Heads) -> Result<(), Failure> {
    let split = split.strategy.split(&Mask::causal(), tokens, split.ranks, heads);
    split.map(drop).map_err(|error| failure(&error))
}

fn failure(error: &StrategyError) -> Failure {
    Failure::new(USAGE, error.to_string(), error.hint())
}
