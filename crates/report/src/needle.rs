//! The panel of needle maps: how often a fact is found, by its depth and the text's length.

use annulus_evaluation::TaskResults;
use maud::{Markup, html};

use crate::parts::{Panel, Table, absent, absent_of, drawn, label, number};
use crate::run::Run;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "needle", title: "Needle map", body: body(runs) }
}

fn found(run: &Run) -> Option<&TaskResults> {
    run.evaluated.tasks.as_ref()
}

fn body(runs: &[Run]) -> Markup {
    let way_out = html! {
        code { "evaluation.tasks: [needle]" } " asks for facts at " code { "evaluation.depths" } " depths of texts of "
        code { "evaluation.lengths" } " tokens; " code { "annulus evaluate RUN" } " writes what was found."
    };
    if !runs.iter().any(|run| found(run).is_some()) {
        return absent("No run was asked for what lies in long texts.", &way_out);
    }
    let asked = runs.iter().filter_map(|run| Some((run, found(run)?)));
    html! {
        @for (run, found) in asked { (maps(run, found, runs.len())) }
        (table(runs))
        (absent_of(runs.iter().filter(|run| found(run).is_none()), &way_out))
    }
}

/// A map for every task with depths.
fn maps(run: &Run, found: &TaskResults, runs: usize) -> Markup {
    let maps: Vec<_> =
        found.tasks().into_iter().filter_map(|task| Some((task, found.heatmap(task)?))).collect();
    let instead = html! { "See the pictures in the run's folder " code { "evaluation" } "." };
    html! {
        @for (task, map) in &maps {
            (drawn(map.picture().to_inline_svg(), runs * maps.len(), &html! {
                (label(run)) " " code { (task) } " after step " (found.step)
                ": depth 0 is the beginning of the text. Bright is found, dark is not."
            }, &instead))
        }
    }
}

fn table(runs: &[Run]) -> Markup {
    let mut rows: Vec<(&str, usize)> = Vec::new();
    for found in runs.iter().filter_map(found) {
        let lengths = found.lengths();
        let all =
            found.tasks().into_iter().flat_map(|task| lengths.iter().map(move |at| (task, *at)));
        rows.extend(all);
    }
    rows.sort_unstable();
    rows.dedup();
    let mut table = Table::of(runs);
    for (task, tokens) in rows {
        table.row(&format!("{task}, {tokens} tokens"), |run| {
            let share = found(run)?.at(task, tokens);
            let shown = format!("{}/{}", share.right, share.of);
            (share.of > 0).then(|| number(share.value(), &shown))
        });
    }
    table.markup("right answers")
}
