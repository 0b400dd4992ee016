//! `annulus layout`: who holds what, drawn.

use annulus_figure::Strips;
use annulus_sequence::{
    Detail, Heads, Mask, Positions, Rule, Schedule, StrategyError, draw_schedule, draw_sharded,
    pairs_between,
};
use serde_json::json;

use crate::Done;
use crate::arguments::{Layout, Split};
use crate::failure::{Failure, USAGE};
use crate::print;
use crate::words::Meant;

pub(crate) fn run(arguments: &Layout) -> Done {
    let Layout { strategy, ref words, ranks, tokens, window, hops, all, ref svg, json } =
        *arguments;
    let mask = window.map_or_else(Mask::causal, |width| Mask::causal().and(Rule::Window(width)));
    let meant = words.meant(strategy, tokens, ranks)?;
    // Who holds what does not depend on heads; with one for each rank all strategies are to be seen.
    let split = sharded(&meant, &mask, tokens, ranks, Heads::equal(ranks))?;
    let Meant { strategy, backward, .. } = meant;
    let forward = strategy.forward(&split).map_err(|error| failure(&error))?;
    if let Some(path) = svg {
        let title = format!("{tokens} positions over {ranks} ranks as {}", forward.layout);
        let picture = strips(title, &mask, &forward.positions).picture();
        print::file(path, picture.to_svg().as_bytes())?;
    }
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
        let detail = if all { Detail::Whole } else { Detail::Short };
        for schedule in schedules {
            print::line(&format!("\n{}", draw_schedule(&schedule, detail)))?;
        }
    }
    Ok(0)
}

/// The meaning of the words, where `tokens` positions of these heads can be split so: checked once, before every rank finds out.
pub(crate) fn check(split: &Split, tokens: usize, heads: Heads) -> Result<Meant, Failure> {
    let meant = split.words.meant(split.strategy, tokens, split.ranks)?;
    sharded(&meant, &Mask::causal(), tokens, split.ranks, heads).map(|_| meant)
}

/// The most cells of a row in a picture.
const CELLS: usize = 360;

/// Who holds what, and how much of what is computed each has of an even share.
fn strips(title: String, mask: &Mask, shards: &[Positions]) -> Strips {
    let tokens = shards.iter().map(Positions::tokens).sum::<usize>();
    let cells = tokens.min(CELLS);
    let bounds = (0..=cells).map(|cell| cell * tokens / cells.max(1)).collect::<Vec<_>>();
    let all = Positions::all(tokens);
    let pairs: Vec<u64> = shards.iter().map(|shard| pairs_between(mask, shard, &all)).collect();
    let even = pairs.iter().sum::<u64>().max(1) as f64 / shards.len() as f64;
    let row = |(rank, shard): (usize, &Positions)| {
        let share = |bounds: &[usize]| {
            let held = shard.rank_of(bounds[1]) - shard.rank_of(bounds[0]);
            held as f64 / (bounds[1] - bounds[0]) as f64
        };
        let note = format!("x {:.2}", pairs[rank] as f64 / even);
        (format!("rank {rank}"), bounds.windows(2).map(share).collect(), note)
    };
    Strips {
        title,
        x: "position; behind a row: its visible pairs, 1.00 where all ranks have as many"
            .to_owned(),
        ends: ["0".to_owned(), tokens.saturating_sub(1).to_string()],
        rows: shards.iter().enumerate().map(row).collect(),
    }
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
