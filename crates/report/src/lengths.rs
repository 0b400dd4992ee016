//! The panel of losses by length and by position, as `annulus evaluate` measured them.

use std::collections::BTreeSet;

use annulus_evaluation::{ConversationScores, Mean, Perplexity};
use annulus_figure::{Axis, Curves, Point, Series};
use maud::{Markup, html};

use crate::parts::{Panel, Table, absent, absent_of, figure, number, plain};
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
    let conversations = conversations(runs);
    if runs.iter().find_map(found).is_none() {
        let nothing = || absent("No run has been evaluated by length.", &way_out);
        return conversations.unwrap_or_else(nothing);
    }
    let targets: BTreeSet<String> = runs.iter().filter_map(found).map(targets).collect();
    let caption = html! {
        @match targets.first().filter(|_| targets.len() == 1) {
            Some(same) => { "The same targets, " (same) }
            None => { "Of each run its own targets, as the table has them: runs with others cannot be compared" }
        }
        ", behind more and more of what comes before them: below is better, and a curve that falls uses what is far away."
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
        @if let Some(table) = &conversations { (table) }
        (absent_of(runs.iter().filter(|run| found(run).is_none()), &way_out))
    }
}

/// Which tokens a run was measured by.
fn targets(found: &Perplexity) -> String {
    format!("the last {} tokens of each of {} windows", found.targets, found.windows)
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
    table.row("targets", |run| Some(html! { (targets(found(run)?)) }));
    for tokens in lengths {
        table.row(&format!("{tokens} tokens"), |run| {
            let mut lengths = found(run)?.lengths.iter();
            lengths.find(|length| length.tokens == tokens).map(|length| cell(length.loss))
        });
    }
    table.markup("loss in nats, ± standard error")
}

/// The losses and right answers of conversations; `None`: no run has read any.
fn conversations(runs: &[Run]) -> Option<Markup> {
    let scores = |run: &Run| {
        let found = run.evaluated.conversations.iter();
        found.flat_map(|found| found.lengths.clone()).collect::<Vec<ConversationScores>>()
    };
    let mut lengths: Vec<usize> = runs.iter().flat_map(scores).map(|one| one.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut table = Table::of(runs);
    for &tokens in &lengths {
        let at = |run: &Run| scores(run).into_iter().find(|one| one.tokens == tokens);
        table.row(&format!("{tokens} tokens"), |run| at(run).map(|found| cell(found.loss)));
        table.row(&format!("right answers, {tokens} tokens"), |run| {
            let ConversationScores { right, not_whole, .. } = at(run)?;
            let right = right?;
            let others = match not_whole {
                0 => String::new(),
                some => format!(", {some} not whole"),
            };
            Some(number(right.value(), &format!("{}/{}{others}", right.right, right.of)))
        });
    }
    let caption = "conversations: loss of the assistant's tokens in nats, ± standard error";
    (!lengths.is_empty()).then(|| table.markup(caption))
}

fn cell(loss: Mean) -> Markup {
    html! { (plain(loss.mean)) small { @if loss.standard_error.is_some() { " ± " (loss.shown_error()) } } }
}
