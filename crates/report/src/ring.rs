//! The panel of a recorded step: which rank computed, sent and waited at every hop.

use annulus_trace::{AttentionTimes, Hop, Pass, Sums, Trace};
use maud::{Markup, html};

use crate::parts::{Panel, absent, absent_of, bytes, dash, drawn, label, number};
use crate::run::{Run, Traced};

/// The layer that is drawn and listed.
const LAYER: usize = 0;
/// The most ranks of a pass with a row of sums.
const RANKS: usize = 16;
/// The most rows of hops, over all runs.
const ROWS: usize = 1200;
/// The most names of tiles or blocks in a cell.
const NAMES: usize = 3;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "ring", title: "Hops of a recorded step", body: body(runs) }
}

fn body(runs: &[Run]) -> Markup {
    let way_out = html! {
        code { "trace.steps: [2]" } " records what every rank does in step 2, without changing a bit of it."
    };
    if runs.iter().all(|run| matches!(run.traced, Ok(None))) {
        return absent("No step has been recorded.", &way_out);
    }
    let traced = runs.iter().filter_map(|run| Some((run, run.traced.as_ref().ok()?.as_ref()?)));
    let unread = runs.iter().filter_map(|run| Some((run, run.traced.as_ref().err()?)));
    html! {
        @for (run, traced) in traced {
            h3 { (label(run)) ", " (traced.trace.heading()) }
            @if traced.count > 1 { p.note { "The last of " (traced.count) " recorded steps." } }
            (picture(traced, runs.len()))
            (sums(traced))
            (hops(&traced.trace, ROWS / runs.len()))
        }
        @for (run, why) in unread { h3 { (label(run)) } p.note { (why) } }
        (absent_of(runs.iter().filter(|run| matches!(run.traced, Ok(None))), &way_out))
    }
}

fn picture(traced: &Traced, runs: usize) -> Markup {
    let caption = html! {
        "Attention of layer " (LAYER) ", time from left to right. Above: what a rank computes. Below: what it waits for. "
        "Green: blocks on their way."
    };
    let instead = html! {
        code { "annulus trace RUN --svg hops.svg" } " draws it, and Perfetto opens the run's " code { "trace-STEP.json" } "."
    };
    drawn(traced.trace.to_inline_svg(LAYER), runs, &caption, &instead)
}

/// A table of sums by pass and rank, over all layers.
fn sums(traced: &Traced) -> Markup {
    let (sums, planned) = (Sums::of(&traced.trace), traced.planned.as_ref().map(Sums::of));
    let ranks = sums.lengths.len();
    let of = |sums: &Sums, pass: Pass, rank: usize| sums.total(|_, p, r| (p, r) == (pass, rank));
    html! {
        table {
            thead { tr {
                th { "all layers" @if planned.is_some() { ", " small { "planned" } } }
                th { "computes, ms" } th { "waits, ms" } th { "for late ranks" } th { "under way" } th { "overlap" } th { "sent" }
            } }
            tbody { @for pass in Pass::ALL { @for rank in 0..ranks.min(RANKS) {
                @let planned = planned.as_ref().map(|planned| of(planned, pass, rank));
                (row(&format!("{} rank {rank}", pass.name()), of(&sums, pass, rank), planned))
            } } }
        }
        @if ranks > RANKS { p.note { "The first " (RANKS) " of " (ranks) " ranks." } }
        p.note { "Overlap is the share of the time under way that is hidden behind computing." }
    }
}

fn row(name: &str, own: AttentionTimes, planned: Option<AttentionTimes>) -> Markup {
    let cell = |of: &dyn Fn(&AttentionTimes) -> Markup| {
        html! { td { (of(&own)) @if let Some(planned) = &planned { " " small { (of(planned)) } } } }
    };
    let overlap = |share: &AttentionTimes| {
        let shown = |part| number(part, &format!("{:.0} %", 100.0 * part));
        share.overlap().map_or_else(dash, shown)
    };
    html! { tr {
        th scope="row" { (name) }
        (cell(&|share| milliseconds(share.computing)))
        (cell(&|share| milliseconds(share.waiting)))
        (cell(&|share| milliseconds(share.late)))
        (cell(&|share| milliseconds(share.flight)))
        (cell(&overlap))
        (cell(&|share| bytes(share.bytes as f64)))
    } }
}

/// A table of what each rank did in every hop.
fn hops(trace: &Trace, most: usize) -> Markup {
    let all: Vec<(Pass, Hop)> = Pass::ALL
        .into_iter()
        .flat_map(|pass| trace.hops(LAYER, pass).into_iter().map(move |hop| (pass, hop)))
        .collect();
    html! {
        details {
            summary { "Layer " (LAYER) ", hop by hop" }
            table {
                thead { tr {
                    th { "pass" } th { "hop" } th { "rank" } th { "computes" } th { "pairs" } th { "ms" }
                    th { "sends" } th { "bytes" } th { "waits for" } th { "ms" }
                } }
                tbody { @for (pass, hop) in all.iter().take(most) { tr {
                    td { (pass.name()) } td { (hop.hop) } td { (hop.rank) }
                    td { (names(&hop.tiles)) } td { (hop.pairs) } td { (milliseconds(hop.computing)) }
                    td { (names(&hop.sends)) } td { (hop.bytes) }
                    td { (names(&hop.waits)) } td { (milliseconds(hop.waiting)) }
                } } }
            }
            @if all.len() > most {
                p.note { "The first " (most) " of " (all.len()) " rows; " code { "annulus trace RUN" } " prints all." }
            }
        }
    }
}

fn names(all: &[String]) -> Markup {
    html! {
        @if all.len() > NAMES { (all.len()) " of them" } @else { code { (all.join(" ")) } }
    }
}

fn milliseconds(nanoseconds: u64) -> Markup {
    let value = nanoseconds as f64 / 1e6;
    number(value, &format!("{value:.3}"))
}
