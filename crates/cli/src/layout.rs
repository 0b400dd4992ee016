//! `annulus layout`: draws which rank holds which positions.

use std::path::PathBuf;

use annulus_figure::{StripRow, Strips};
use annulus_sequence::{
    Detail, Heads, Mask, Positions, Rule, Schedule, Split, Strategy, StrategyError, draw_schedule,
    draw_sharded, pairs_between,
};
use annulus_train::Exit;
use clap::Args;
use serde_json::json;

use crate::Done;
use crate::failure::Failure;
use crate::print;
use crate::split::{ResolvedStrategy, SplitFlags, StrategyFlags, strategy};
use crate::values::{at_least_one, ranks, svg, tokens};

#[derive(Args, Debug)]
pub(crate) struct Layout {
    /// local, ring, striped, megatron, ulysses, usp, double-ring, all-gather, broadcast, halo or
    /// li-ring
    #[arg(value_parser = strategy)]
    strategy: Strategy,
    #[command(flatten)]
    flags: StrategyFlags,
    /// Number of ranks
    #[arg(long, default_value_t = 4, value_parser = ranks())]
    ranks: usize,
    /// Number of positions
    #[arg(long, value_parser = tokens, default_value_t = 16)]
    tokens: usize,
    /// How many positions back a query sees, itself included
    #[arg(long, value_parser = at_least_one::<usize>)]
    window: Option<usize>,
    /// Also show what is sent, hop by hop
    #[arg(long, conflicts_with = "json")]
    hops: bool,
    /// With `--hops`: show every rank, hop and message, however many
    #[arg(long, requires = "hops")]
    all: bool,
    /// Write a picture of which rank holds which positions
    #[arg(long, value_name = "PATH", value_parser = svg)]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Layout) -> Done {
    let Layout { strategy, ref flags, ranks, tokens, window, hops, all, ref svg, json } =
        *arguments;
    let mask = window.map_or_else(Mask::causal, |width| Mask::causal().and(Rule::Window(width)));
    let resolved = flags.resolve(strategy, tokens, ranks)?;
    // The layout does not depend on heads; one head for each rank suits all strategies.
    let split = sharded(&resolved, &mask, tokens, ranks, Heads::equal(ranks))?;
    let ResolvedStrategy { strategy, backward, .. } = resolved;
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

/// Resolves the flags, and checks that `tokens` positions of these heads can be split so, before the ranks start.
pub(crate) fn check(
    split: &SplitFlags,
    tokens: usize,
    heads: Heads,
) -> Result<ResolvedStrategy, Failure> {
    let resolved = split.flags.resolve(split.strategy, tokens, split.ranks)?;
    sharded(&resolved, &Mask::causal(), tokens, split.ranks, heads).map(|_| resolved)
}

/// The most cells of a row in a picture.
const CELLS: usize = 360;

/// A strip for each rank: its positions, and its visible pairs relative to an even share.
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
        StripRow {
            name: format!("rank {rank}"),
            cells: bounds.windows(2).map(share).collect(),
            note,
        }
    };
    Strips {
        title,
        x: "position; after each row: its visible pairs, 1.00 if all ranks have equally many"
            .to_owned(),
        ends: ["0".to_owned(), tokens.saturating_sub(1).to_string()],
        rows: shards.iter().enumerate().map(row).collect(),
    }
}

fn sharded(
    resolved: &ResolvedStrategy,
    mask: &Mask,
    tokens: usize,
    ranks: usize,
    heads: Heads,
) -> Result<Split, Failure> {
    resolved.strategy.check(ranks, heads).map_err(|error| failure(&error))?;
    let positions = resolved.layout.shard_weighted(mask, tokens, &vec![1; ranks]);
    let positions = positions.map_err(|error| failure(&StrategyError::Shard(error)))?;
    Ok(Split::new(mask, resolved.layout, positions, heads))
}

fn failure(error: &StrategyError) -> Failure {
    Failure::new(Exit::Usage, error.to_string(), error.hint())
}
