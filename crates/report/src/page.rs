//! The page around its panels: its security policy, its style, and the runs with their colors.

use annulus_text::{duration, escaped, size};
use annulus_train::run_name;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::parts::{Panel, Table, cut, label, number};
use crate::run::Run;
use crate::{
    LARGEST, PANELS, experiment, hashes, lengths, loss, manifest, memory, needle, plan, ring,
};

/// The policy: nothing may be fetched, and no script may run; styles are in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("style.css");
/// The most bytes of a page besides its panels, and of a note that a panel is left out.
const BESIDES: usize = 60_000;
const LEFT_OUT: usize = 1_000;
/// The most characters of an ending and of a path.
const LONG: usize = 200;

/// The page, of at most [`LARGEST`] bytes.
pub(crate) fn page(runs: &[Run]) -> String {
    let panels: [Panel; PANELS.len()] = [
        loss::panel(runs),
        lengths::panel(runs),
        needle::panel(runs),
        plan::panel(runs),
        ring::panel(runs),
        memory::panel(runs),
        experiment::panel(runs),
        manifest::panel(runs),
        hashes::panel(runs),
    ];
    let names: Vec<String> = runs.iter().map(|run| run_name(&run.logged.folder)).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (cut(&names.join(", "), LONG)) " – Annulus" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Training report" }
                    (listed(runs))
                    nav { @for panel in &panels { a href=(format!("#{}", panel.id)) { (panel.title) } " " } }
                }
                main { @for section in bounded(&panels) { (section) } }
            }
        }
    };
    escaped(&page.0).into_owned()
}

/// The panels in order; those that no longer fit into the page are replaced by a note.
fn bounded(panels: &[Panel]) -> Vec<Markup> {
    let mut left = LARGEST - BESIDES - panels.len() * LEFT_OUT;
    let fitting = |panel: &Panel| {
        // Escaped before it is measured: it grows.
        let section = PreEscaped(escaped(&panel.section().0).into_owned());
        if let Some(rest) = left.checked_sub(section.0.len()) {
            left = rest;
            return section;
        }
        let had = size(section.0.len() as u64);
        let body = html! {
            p.absent { "Left out: it has " (had) ", more than there is room for in a page of "
                (size(LARGEST as u64)) ". Give fewer runs." }
        };
        Panel { body, ..*panel }.section()
    };
    panels.iter().map(fitting).collect()
}

/// The list of runs: where they are, and how far they came.
fn listed(runs: &[Run]) -> Markup {
    let mut table = Table::of(runs);
    let folder = |run: &Run| run.logged.folder.display().to_string();
    table.row("name", |run| Some(html! { (run.logged.experiment.name) }));
    table.row("folder", |run| Some(html! { code { (cut(&folder(run), LONG)) } }));
    table.row("last logged step", |run| {
        let last = run.logged.last_step()?;
        Some(html! { (number(last as f64, &last.to_string())) " of " (run.logged.experiment.last_step()) })
    });
    table.row("ending", |run| {
        let ending = run.logged.ending().unwrap_or("running, or killed");
        Some(html! { (cut(ending, LONG)) })
    });
    table.row("time in all", |run| {
        let seconds = run.logged.seconds().filter(|&seconds| seconds > 0)?;
        Some(html! { (duration(seconds as f64)) })
    });
    table.row("ranks", |run| Some(html! { (run.logged.manifest.as_ref()?.ranks()) }));
    table.row("strategy", |run| Some(html! { (run.logged.manifest.as_ref()?.strategy()) }));
    table.row("tokens per sequence", |run| Some(html! { (run.phase.data.tokens) }));
    html! { (table.markup(if runs.len() == 1 { "run" } else { "runs" })) @if runs.len() > 1 {
        p.note { "One color for each run, in all figures: " @for run in runs { (label(run)) " " } }
    } }
}
