//! Hop by hop, what every rank computes and sends.

use super::{glyph, ranks, row};
use crate::{Buffer, Collective, Hop, Part, Pass, Schedule};

/// The most ranks drawn side by side, and how wide each is.
const RANKS: usize = 7;
const WIDTH: usize = 12;
/// The most hops that are all drawn; of more, so many first ones and last ones.
const HOPS: usize = 12;
const FIRST: usize = 5;
const LAST: usize = 3;

/// Hop by hop: what every rank computes and sends. Of many ranks or hops, the first and last.
pub fn draw_schedule(schedule: &Schedule) -> String {
    let (world, hops) = (schedule.world(), schedule.hops());
    let shown = world.min(RANKS);
    let pass = match schedule.pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
    };
    let mut lines = vec![
        format!("{} {pass} over {}, hop by hop", schedule.strategy, ranks(world)),
        "tile with the keys of a rank: ■ all visible, ◪ some, · none".to_owned(),
        "k keys and values, g gradients, > sent to, + added to the gradients of a rank".to_owned(),
        String::new(),
    ];
    let more = if world > shown { format!("+ {}", world - shown) } else { String::new() };
    let ranks = (0..shown).map(|rank| format!("rank {rank}"));
    lines.push(row("", ranks.chain([more]), WIDTH));
    let drawn = |hop: &usize| hops <= HOPS || *hop < FIRST || *hop >= hops - LAST;
    for hop in (0..hops).filter(drawn) {
        if hops > HOPS && hop == hops - LAST {
            lines.push(format!("..       {} more hops", hops - FIRST - LAST));
        }
        lines.extend(draw_hop(schedule, hop, shown));
    }
    lines.join("\n")
}

/// A line each of what is computed, sent and added, where anything is.
fn draw_hop(schedule: &Schedule, hop: usize, shown: usize) -> Vec<String> {
    let plans: Vec<&Hop> = schedule.ranks[..shown].iter().map(|hops| &hops[hop]).collect();
    let collective = plans.first().and_then(|plan| plan.collective);
    let mut heads = [format!("hop {hop}")].into_iter();
    let mut lines = Vec::new();
    let mut push = |cells: Vec<String>| {
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push(row(&heads.next().unwrap_or_default(), cells, WIDTH));
        }
    };
    push(plans.iter().map(|plan| tiles(schedule, plan)).collect());
    match collective {
        Some(Collective::AllGather) => push(vec!["all-gather of k".into()]),
        Some(Collective::ReduceScatter) => push(vec!["reduce-scatter of g".into()]),
        None => {
            push(plans.iter().map(|plan| sends(plan, Part::KeyValue)).collect());
            push(plans.iter().map(|plan| sends(plan, Part::Gradient)).collect());
        }
    }
    push(plans.iter().map(|plan| folds(plan)).collect());
    lines
}

fn tiles(schedule: &Schedule, plan: &Hop) -> String {
    let tile = |tile: &crate::TilePlan| {
        let [q, k] = [tile.queries, tile.keys].map(|rank| &schedule.positions[rank]);
        format!("{}{}", glyph(schedule.mask.coverage_of(q, k)), tile.keys)
    };
    fitting(plan.tiles.iter().map(tile), "tiles")
}

fn sends(plan: &Hop, part: Part) -> String {
    let sent = plan.sends.iter().filter(|sent| sent.buffer.part == part);
    fitting(sent.map(|sent| format!("{} > {}", name(sent.buffer), sent.to)), "sends")
}

fn folds(plan: &Hop) -> String {
    fitting(plan.folds.iter().map(|fold| format!("+{}", name(fold.into))), "folds")
}

fn name(buffer: Buffer) -> String {
    let letter = match buffer.part {
        Part::Query => 'q',
        Part::KeyValue => 'k',
        Part::Gradient | Part::Contribution => 'g',
    };
    format!("{letter}{}", buffer.owner)
}

/// All of them where they fit into a cell, else how many.
fn fitting(names: impl Iterator<Item = String>, what: &str) -> String {
    let names: Vec<String> = names.collect();
    let all = names.join(" ");
    if all.chars().count() < WIDTH { all } else { format!("{} {what}", names.len()) }
}
