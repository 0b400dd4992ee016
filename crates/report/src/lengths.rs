//! The panel of losses by length and by position, as `annulus evaluate` measured them.

use annulus_evaluation::{Length, Perplexity};
use annulus_figure::{Axis, Curves, Point, Series};
use maud::{Markup, html};

use crate::parts::{Panel, Table, absent, absent_of, figure, plain};
use crate::run::Run;

const ERRORS: &str = "loss in nats, with standard errors";

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "loss-by-length", title: "Loss by length and position", body: body(runs) }
}

fn found(run: &Run) -> Option<&Perplexity> {
    run.evaluated.perplexity.as_ref()
}

fn body(runs: &[Run]) -> Markup {
    let way_out = html! {
        code { "annulus evaluate RUN" } " writes it; " code { "evaluation.lengths" } " says at which lengths, and "
        code { "evaluation.tasks" } " must have " code { "perplexity" } "."
    };
    let Some(first) = runs.iter().find_map(found) else {
        return absent("No run has been evaluated by length.", &way_out);
    };
    let caption = html! {
        "The same targets, the last " (first.targets) " tokens of each of " (first.windows)
        " windows, behind more and more of what comes before them: below is better, and a curve that falls uses what is far away."
    };
    html! {
        @if runs.iter().filter_map(found).any(|found| found.lengths.len() > 1) {
            (curves(runs, "loss by length", Axis::logarithmic("tokens read"), Perplexity::by_length, &caption))
        }
        @if runs.iter().filter_map(found).any(|found| !found.positions.is_empty()) {
            (curves(runs, "loss by position", Axis::plain("position"), Perplexity::by_position, &html! {
                "The loss of neighbouring positions, in sequences of the greatest length."
            }))
        }
        (table(runs))
        (absent_of(runs.iter().filter(|run| found(run).is_none()), &way_out))
    }
}

fn curves(
    runs: &[Run],
    title: &str,
    x: Axis,
    of: fn(&Perplexity) -> Vec<Point>,
    caption: &Markup,
) -> Markup {
    let series = |run: &Run| {
        let (name, points) = (run.titled(), of(found(run)?));
        Some(Series { name, points, color: Some(run.place), ..Series::default() })
    };
    let series = runs.iter().filter_map(series).collect();
    let picture = Curves { title: title.to_owned(), x, y: Axis::plain(ERRORS), series };
    figure(&picture.picture(), caption)
}

fn table(runs: &[Run]) -> Markup {
    let mut lengths: Vec<usize> =
        runs.iter().filter_map(found).flat_map(|one| &one.lengths).map(|one| one.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut table = Table::of(runs);
    table.row("step of the weights", |run| Some(html! { (found(run)?.step) }));
    for tokens in lengths {
        table.row(&format!("{tokens} tokens"), |run| {
            let mut lengths = found(run)?.lengths.iter();
            lengths.find(|length| length.tokens == tokens).map(cell)
        });
    }
    table.markup("loss in nats, ± standard error")
}

fn cell(length: &Length) -> Markup {
    html! { (plain(length.loss.mean)) small { @if length.loss.standard_error.is_some() { " ± " (length.loss.shown_error()) } } }
}
