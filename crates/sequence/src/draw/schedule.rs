//! Draws a schedule: what every rank computes and sends, hop by hop.

use std::ops::Range;

use annulus_text::count;

use super::{glyph, row};
use crate::{Block, Collective, Hop, Part, Schedule, TilePlan};

/// The most ranks side by side, and the width of each: 80 columns.
const RANKS: usize = 6;
const WIDTH: usize = 12;
/// The most hops that are all drawn; of more, this many of the first and last ones.
const HOPS: usize = 12;
const FIRST: usize = 5;
const LAST: usize = 3;

/// How much of a schedule is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The first ranks; the first and last of many hops; only the number of many moves.
    Short,
    /// Every rank, hop and move.
    Whole,
}

/// Draws what every rank computes, sends and adds, hop by hop. The last line says what is left out.
pub fn draw_schedule(schedule: &Schedule, detail: Detail) -> String {
    let world = schedule.world();
    let shown = if detail == Detail::Whole { world } else { world.min(RANKS) };
    let pass = schedule.pass.name();
    let mut lines = vec![
        format!("{} {pass} over {}, hop by hop", schedule.strategy, count(world, "rank")),
        "tile with the keys of a rank: ■ all visible, ◪ some, · none;".to_owned(),
        "of others' queries as q:k".to_owned(),
    ];
    lines.extend(letters(schedule));
    for first in (0..shown).step_by(RANKS) {
        lines.push(String::new());
        lines.extend(draw_hops(schedule, first..(first + RANKS).min(shown), detail));
    }
    lines.extend(left_out(schedule, shown, detail));
    lines.join("\n")
}

/// The lines of some ranks side by side.
fn draw_hops(schedule: &Schedule, shown: Range<usize>, detail: Detail) -> Vec<String> {
    let hops = schedule.hops();
    let mut lines = vec![row("", shown.clone().map(|rank| format!("rank {rank}")), WIDTH)];
    let all = hops <= HOPS || detail == Detail::Whole;
    for hop in (0..hops).filter(|hop| all || *hop < FIRST || *hop >= hops - LAST) {
        if !all && hop == hops - LAST {
            lines.push(format!("..       {} more hops", hops - FIRST - LAST));
        }
        lines.extend(draw_hop(schedule, hop, shown.clone(), detail));
    }
    lines
}

/// A remark on what is not drawn.
fn left_out(schedule: &Schedule, shown: usize, detail: Detail) -> Option<String> {
    let (world, hops) = (schedule.world(), schedule.hops());
    let drawn = if hops > HOPS { FIRST + LAST } else { hops };
    (detail == Detail::Short && (shown < world || drawn < hops)).then(|| {
        format!("({shown} of {world} ranks and {drawn} of {hops} hops are drawn; `--all`: all)")
    })
}

/// What the letters stand for: keys and values separately where they travel separately.
fn letters(schedule: &Schedule) -> [String; 2] {
    let hops = |rank| (0..schedule.hops()).map(move |index| schedule.hop(rank, index));
    let apart = |hop: Hop| hop.tiles.meetings().iter().any(|met| met.part != Part::KeyValue);
    let apart = (0..schedule.world().min(RANKS)).flat_map(hops).any(apart);
    let keys = if apart { "k keys, v values" } else { "k keys and values" };
    [
        format!("{keys}, q queries, o outputs, gk gq their gradients;"),
        "> sent to, + comes and is added".to_owned(),
    ]
}

/// The lines of a hop: computed, sent and added, where there is anything.
fn draw_hop(schedule: &Schedule, hop: usize, shown: Range<usize>, detail: Detail) -> Vec<String> {
    let plans: Vec<(usize, Hop)> = shown.map(|rank| (rank, schedule.hop(rank, hop))).collect();
    let mut heads = [format!("hop {hop}")].into_iter();
    let mut lines = Vec::new();
    let mut push = |cells: Vec<Vec<String>>| {
        for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let cells = cells.iter().map(|cell| cell.get(line).cloned().unwrap_or_default());
            lines.push(row(&heads.next().unwrap_or_default(), cells, WIDTH));
        }
    };
    let cells = |names: &dyn Fn(usize, &Hop) -> Vec<String>, what: &str| {
        plans.iter().map(|(rank, plan)| fitting(&names(*rank, plan), what, detail)).collect()
    };
    push(cells(&|rank, plan| tiles(schedule, rank, plan), "tiles"));
    if let Some(collective) = plans.first().and_then(|(_, plan)| plan.collective) {
        push(vec![vec![said(collective, schedule, hop)]]);
    } else {
        push(cells(&|_, plan| sends(plan, Part::is_lent), "sends"));
        push(cells(&|_, plan| sends(plan, |part| !part.is_lent()), "sends"));
        push(cells(&|_, plan| sums(plan), "sums"));
    }
    lines
}

/// The tiles of a hop: `■2` with the keys of rank 2, `■1:2` where the queries are rank 1's instead of the rank's own.
fn tiles(schedule: &Schedule, rank: usize, plan: &Hop) -> Vec<String> {
    let tile = |TilePlan { queries, keys }: TilePlan| {
        let positions = |block: &Block| schedule.positions[block.owner].rows(block.rows.range());
        let glyph = glyph(schedule.mask.coverage_of(&positions(&queries), &positions(&keys)));
        if queries.owner == rank {
            format!("{glyph}{}", keys.owner)
        } else {
            format!("{glyph}{}:{}", queries.owner, keys.owner)
        }
    };
    plan.tiles.iter().map(tile).collect()
}

fn sends(plan: &Hop, of: fn(Part) -> bool) -> Vec<String> {
    let sent = plan.sends.iter().filter(|sent| of(sent.block.part));
    sent.map(|sent| format!("{} > {}", name(sent.block), sent.to)).collect()
}

/// The sums that arrive in a hop.
fn sums(plan: &Hop) -> Vec<String> {
    let come = plan.receives.iter().filter(|received| received.block.part.is_sum());
    come.map(|received| format!("+{}", name(received.block))).collect()
}

/// A collective in words: `all-to-all of q k`.
fn said(collective: Collective, schedule: &Schedule, index: usize) -> String {
    let collective = match collective {
        Collective::AllGather => "all-gather",
        Collective::Broadcast => "broadcast",
        Collective::ReduceScatter => "reduce-scatter",
        Collective::AllToAll => "all-to-all",
    };
    let firsts = schedule.groups(index).into_iter().map(|group| group.first());
    let sent = firsts.flat_map(|rank| schedule.hop(rank, index).sends);
    let mut parts: Vec<Part> = sent.map(|sent| sent.block.part).collect();
    parts.sort_unstable();
    parts.dedup();
    let parts: Vec<&str> = parts.into_iter().map(Part::letter).collect();
    format!("{collective} of {}", parts.join(" "))
}

fn name(block: Block) -> String {
    format!("{}{}", block.part.letter(), block.owner)
}

/// The lines of a cell: the names where they fit into one line or everything is wanted, else their number.
fn fitting(names: &[String], what: &str, detail: Detail) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for name in names {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + name.chars().count() < WIDTH => {
                line.push(' ');
                line.push_str(name);
            }
            _ => lines.push(name.clone()),
        }
    }
    match lines.len() {
        0 | 1 => lines,
        _ if detail == Detail::Whole => lines,
        _ => vec![format!("{} {what}", names.len())],
    }
}
