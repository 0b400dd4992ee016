//! Draws which rank holds which position, and how much ranks see of each other.

use annulus_text::{TERMINAL_WIDTH, count};

use super::{HEAD, glyph, row};
use crate::{Layout, Mask, Positions, Run, pairs_between};

/// The most columns for positions.
const COLUMNS: usize = 64;
/// The most ranks whose pair counts fit side by side.
const COUNTED: usize = 8;
/// The most ranks that are all drawn; of more, this many of the first and last ones.
const DRAWN: usize = 64;
const FIRST: usize = 5;
const LAST: usize = 3;

/// Draws which rank holds which position, and how much each rank sees of every other under `mask`.
pub fn draw_sharded(layout: Layout, mask: &Mask, shards: &[Positions]) -> String {
    let mut lines = draw_held(layout, shards);
    lines.extend(draw_pairs(shards, mask));
    lines.join("\n")
}

/// Draws which rank holds which position, and what ranks see of each other under each mask of `layers`, which have names.
pub fn draw_layers(layout: Layout, layers: &[(String, Mask)], shards: &[Positions]) -> String {
    let mut lines = draw_held(layout, shards);
    for (number, (name, mask)) in layers.iter().enumerate() {
        lines.extend((number > 0).then(String::new));
        lines.push(name.clone());
        lines.extend(draw_pairs(shards, mask));
    }
    lines.join("\n")
}

/// The lines of which rank holds what.
fn draw_held(layout: Layout, shards: &[Positions]) -> Vec<String> {
    let tokens = shards.iter().map(Positions::tokens).sum();
    let mut lines = vec![
        format!(
            "{tokens} positions over {} as {layout}, {}",
            count(shards.len(), "rank"),
            each(shards)
        ),
        String::new(),
    ];
    lines.extend(draw_shards(shards, tokens));
    lines.push(String::new());
    lines
}

/// The number of positions per rank: `4 each`, or `3 to 5 each`.
fn each(shards: &[Positions]) -> String {
    let tokens = || shards.iter().map(Positions::tokens);
    match (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0)) {
        (fewest, most) if fewest == most => format!("{most} each"),
        (fewest, most) => format!("{fewest} to {most} each"),
    }
}

/// A line per rank with its positions: a column is dark where the rank holds them. Where every column is shared by ranks, the first
/// positions are drawn one by one.
fn draw_shards(shards: &[Positions], tokens: usize) -> Vec<String> {
    let drawn = |rank: usize| shards.len() <= DRAWN || rank < FIRST || rank >= shards.len() - LAST;
    let shown: Vec<(usize, &Positions)> =
        shards.iter().enumerate().filter(|(rank, _)| drawn(*rank)).collect();
    let longest = shown.iter().map(|(_, shard)| list(shard).len()).max().unwrap_or(0);
    let columns = (TERMINAL_WIDTH - HEAD).saturating_sub(longest + 2).clamp(1, COLUMNS.min(tokens));
    let bounds: Vec<usize> = (0..=columns).map(|column| column * tokens / columns).collect();
    let of_all = |shard: &Positions| strip(shard, &bounds);
    let telling = shown.iter().any(|(_, shard)| of_all(shard).contains('█'));
    let one_by_one: Vec<usize> = (0..=columns).collect();
    let bounds = if telling { bounds } else { one_by_one };
    let line = |(rank, shard): &(usize, &Positions)| {
        let line = format!("{}  {}", strip(shard, &bounds), list(shard));
        row(&format!("rank {rank}"), [line], 0)
    };
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    if shards.len() > DRAWN {
        lines.insert(FIRST, format!("..       {} more ranks", shards.len() - FIRST - LAST));
    }
    if !telling {
        lines.push(format!("(drawn: the first {columns} of {tokens} positions, one by one)"));
    }
    lines
}

/// A strip with a column between every two bounds.
fn strip(shard: &Positions, bounds: &[usize]) -> String {
    let shade = |bounds: &[usize]| {
        let [start, end] = [bounds[0], bounds[1]];
        match shard.rank_of(end) - shard.rank_of(start) {
            0 => '·',
            held if held == end - start => '█',
            held if 2 * held >= end - start => '▓',
            _ => '░',
        }
    };
    bounds.windows(2).map(shade).collect()
}

/// The positions in short: `0-3, 28-31`, or `1, 5, .. 29`.
fn list(shard: &Positions) -> String {
    let block = |start: usize, len: usize| match len {
        1 => start.to_string(),
        _ => format!("{start}-{}", start + len - 1),
    };
    let run = |run: &Run| {
        let at = |index: usize| block(run.start + run.step * index, run.width);
        match (run.step, run.len) {
            (1, len) => block(run.start, len),
            (_, 2) => format!("{}, {}", at(0), at(1)),
            (_, len) => format!("{}, {}, .. {}", at(0), at(1), at(len - 1)),
        }
    };
    shard.runs().iter().map(run).collect::<Vec<_>>().join(", ")
}

/// A matrix of how much the queries of one rank see of the keys of another; for many ranks only the balance.
fn draw_pairs(shards: &[Positions], mask: &Mask) -> Vec<String> {
    let world = shards.len();
    if world > DRAWN {
        let all = Positions::all(shards.iter().map(Positions::tokens).sum());
        let of_rank = |shard: &Positions| pairs_between(mask, shard, &all);
        return vec![busiest(&shards.iter().map(of_rank).collect::<Vec<_>>())];
    }
    let counts: Vec<Vec<u64>> =
        shards.iter().map(|q| shards.iter().map(|k| pairs_between(mask, q, k)).collect()).collect();
    let totals: Vec<u64> = counts.iter().map(|row| row.iter().sum()).collect();
    let all: u64 = totals.iter().sum();
    let share = |total: u64| total as f64 * world as f64 / all.max(1) as f64;
    // Eight counts side by side leave no room for blanks.
    let (width, blank) = match world {
        COUNTED => (8, ""),
        few if few < COUNTED => (9, " "),
        _ => (1, ""),
    };
    let mut lines =
        vec!["visible pairs of queries (down) and keys (across): ■ all, ◪ some, · none".to_owned()];
    if world <= COUNTED {
        lines.push(row("", (0..world).map(|rank| format!("rank {rank}")), width));
    }
    for (rank, q) in shards.iter().enumerate() {
        let cell = |(k, pairs): (&Positions, &u64)| {
            let glyph = glyph(mask.coverage_of(q, k));
            let count = if world <= COUNTED { short(*pairs) } else { String::new() };
            format!("{glyph}{blank}{count}")
        };
        let cells: Vec<String> = shards.iter().zip(&counts[rank]).map(cell).collect();
        let sum = format!("{blank} x {:.2}", share(totals[rank]));
        lines.push(row(&format!("rank {rank}"), cells.into_iter().chain([sum]), width));
    }
    lines.push(busiest(&totals));
    lines
}

/// The balance of the ranks' pairs, in words.
fn busiest(pairs: &[u64]) -> String {
    let all: u128 = pairs.iter().map(|pairs| u128::from(*pairs)).sum();
    let most = pairs.iter().copied().max().unwrap_or(0);
    let share = most as f64 * pairs.len() as f64 / all.max(1) as f64;
    format!("{all} visible pairs; the busiest rank has {share:.2} times an even share")
}

/// A number of pairs in at most seven characters.
fn short(pairs: u64) -> String {
    if pairs < 1_000_000 { pairs.to_string() } else { format!("{:.2e}", pairs as f64) }
}
