//! The panel of the experiments' files, and the keys in which runs differ.

use annulus_experiment::ModelSource;
use annulus_train::{Differing, differing};
use maud::{Markup, html};

use crate::parts::{Panel, cut, dash, label, word};
use crate::run::Run;

/// The most characters of all files on a page.
const TEXTS: usize = 240_000;
/// The most characters of a value in a table.
const VALUE: usize = 120;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "experiment", title: "Experiment", body: body(runs) }
}

fn body(runs: &[Run]) -> Markup {
    let most = TEXTS / (2 * runs.len());
    html! {
        @if runs.len() > 1 { (differences(runs)) }
        @for run in runs {
            h3 { (label(run)) }
            @if let Some(given) = &run.logged.given {
                details open[runs.len() == 1] {
                    summary { "as it was given: " code { "given.yaml" } }
                    pre { (cut(given, most)) }
                }
            }
            details open[runs.len() == 1 && run.logged.given.is_none()] {
                summary { "every key as it was run: " code { "experiment.yaml" } }
                pre { (cut(&run.logged.resolved, most)) }
            }
        }
    }
}

/// A table of the keys that differ between runs.
fn differences(runs: &[Run]) -> Markup {
    let read: Vec<_> = runs.iter().map(|run| run.logged.clone()).collect();
    let (keys, origins) = differing(&read);
    if keys.is_empty() && origins.is_empty() {
        return html! { p { "Nothing differs but the folders." } };
    }
    html! {
        table {
            thead { tr { th { "what differs" } @for run in runs { th { (label(run)) } } } }
            tbody { @for one in keys.iter().chain(&origins) { (row(one, runs)) } }
        }
    }
}

fn row(one: &Differing, runs: &[Run]) -> Markup {
    let default = one.default.as_deref().filter(|_| !is_of_models(&one.name, runs));
    html! { tr {
        th scope="row" { code { (one.name) } }
        @for value in &one.values { td { @match value {
            Some(value) => (word(value, VALUE)),
            None => { (dash()) @if let Some(default) = default { " " small { "default " (default) } } },
        } } }
    } }
}

/// Whether a key is of `model` where some runs name a folder and others a shape: a run's own kind may lack it, and a folder's config.json
/// says instead what holds.
fn is_of_models(key: &str, runs: &[Run]) -> bool {
    let of_folder =
        |run: &Run| matches!(run.logged.experiment.model.source, ModelSource::Folder { .. });
    let differ = runs.windows(2).any(|pair| of_folder(&pair[0]) != of_folder(&pair[1]));
    differ && key.starts_with("model.")
}
