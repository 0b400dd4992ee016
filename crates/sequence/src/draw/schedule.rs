//! Hop by hop, what every rank computes and moves.

use super::{glyph, ranks, row};
use crate::{Block, Collective, Hop, Part, Pass, Schedule, TilePlan};

/// The most ranks drawn side by side, and how wide each is.
const RANKS: usize = 7;
const WIDTH: usize = 12;
/// The most hops that are all drawn; of more, so many first ones and last ones.
const HOPS: usize = 12;
const FIRST: usize = 5;
const LAST: usize = 3;

/// Hop by hop: what every rank computes, sends and adds. Of many ranks or hops, the first and last.
pub fn draw_schedule(schedule: &Schedule) -> String {
    let (world, hops) = (schedule.world(), schedule.hops());
    let shown = world.min(RANKS);
    let pass = match schedule.pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
    };
    let mut lines = vec![
        format!("{} {pass} over {}, hop by hop", schedule.strategy, ranks(world)),
        "tile with the keys of a rank: ■ all visible, ◪ some, · none; of others' queries as q:k"
            .to_owned(),
        letters(schedule),
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

/// What letters stand for: where keys and values go apart, for each alone.
fn letters(schedule: &Schedule) -> String {
    let hops = |rank| (0..schedule.hops()).map(move |index| schedule.hop(rank, index));
    let apart = |hop: Hop| hop.tiles.meetings().iter().any(|met| met.part != Part::KeyValue);
    let apart = (0..schedule.world().min(RANKS)).flat_map(hops).any(apart);
    let keys = if apart { "k keys, v values" } else { "k keys and values" };
    format!("{keys}, q queries, o outputs, gk gq their gradients, > sent to, + comes and is added")
}

/// A line each of what is computed, sent and added, where anything is.
fn draw_hop(schedule: &Schedule, hop: usize, shown: usize) -> Vec<String> {
    let plans: Vec<(usize, Hop)> = (0..shown).map(|rank| (rank, schedule.hop(rank, hop))).collect();
    let mut heads = [format!("hop {hop}")].into_iter();
    let mut lines = Vec::new();
    let mut push = |cells: Vec<String>| {
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push(row(&heads.next().unwrap_or_default(), cells, WIDTH));
        }
    };
    push(plans.iter().map(|(rank, plan)| tiles(schedule, *rank, plan)).collect());
    if let Some(collective) = plans.first().and_then(|(_, plan)| plan.collective) {
        push(vec![said(collective, schedule, hop)]);
    } else {
        push(plans.iter().map(|(_, plan)| sends(plan, Part::is_lent)).collect());
        push(plans.iter().map(|(_, plan)| sends(plan, |part| !part.is_lent())).collect());
        push(plans.iter().map(|(_, plan)| sums(plan)).collect());
    }
    lines
}

/// `■2` with the keys of rank 2, `■1:2` where the queries are rank 1's and not the rank's own.
fn tiles(schedule: &Schedule, rank: usize, plan: &Hop) -> String {
    let tile = |TilePlan { queries, keys }: TilePlan| {
        let positions = |block: &Block| schedule.positions[block.owner].rows(block.rows.range());
        let glyph = glyph(schedule.mask.coverage_of(&positions(&queries), &positions(&keys)));
        if queries.owner == rank {
            format!("{glyph}{}", keys.owner)
        } else {
            format!("{glyph}{}:{}", queries.owner, keys.owner)
        }
    };
    fitting(plan.tiles.len(), plan.tiles.iter().map(tile), "tiles")
}

fn sends(plan: &Hop, of: fn(Part) -> bool) -> String {
    let sent: Vec<_> = plan.sends.iter().filter(|sent| of(sent.block.part)).collect();
    let names = sent.iter().map(|sent| format!("{} > {}", name(sent.block), sent.to));
    fitting(sent.len(), names, "sends")
}

/// Sums that come: none is there twice, so they join what is.
fn sums(plan: &Hop) -> String {
    let come = plan.receives.iter().filter(|received| received.block.part.is_sum());
    let names = come.clone().map(|received| format!("+{}", name(received.block)));
    fitting(come.count(), names, "sums")
}

/// `all-to-all of q k`.
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

/// All of them where they fit into a cell, else how many.
fn fitting(count: usize, names: impl Iterator<Item = String>, what: &str) -> String {
    // No name is shorter than two characters.
    if 2 * count < WIDTH {
        let all = names.collect::<Vec<_>>().join(" ");
        if all.chars().count() < WIDTH {
            return all;
        }
    }
    format!("{count} {what}")
}
