//! The panel of the state's hashes: how many steps have them, and where runs that should be equal first differ.

use std::path::PathBuf;

use annulus_text::count;
use annulus_train::{Bisected, Difference, StepHashes, bisect};
use maud::{Markup, html};

use crate::parts::{Panel, Table, absent, absent_of, cut, label};
use crate::run::Run;

/// The most steps that are listed: the last ones.
const STEPS: usize = 12;
/// Letters of a hash that are shown.
const SHORT: usize = 16;
/// The most letters of a hash in its tooltip.
const LONG: usize = 200;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "hashes", title: "Hashes of the state", body: body(runs) }
}

fn body(runs: &[Run]) -> Markup {
    let way_out = html! {
        code { "every.hash: 1" } " hashes every weight, f32 master, moment and gradient after every step."
    };
    if runs.iter().all(|run| run.hashed.is_empty()) {
        return absent("No run has hashed its state.", &way_out);
    }
    html! {
        (table(runs))
        (against_first(runs))
        (absent_of(runs.iter().filter(|run| run.hashed.is_empty()), &way_out))
    }
}

fn table(runs: &[Run]) -> Markup {
    let mut steps: Vec<u64> =
        runs.iter().flat_map(|run| &run.hashed).map(|line| line.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut table = Table::of(runs);
    let some = |run: &Run| (!run.hashed.is_empty()).then_some(run.hashed.len());
    table.row("hashed steps", |run| some(run).map(|count| html! { (count) }));
    table.row("tensors in each", |run| Some(html! { (run.hashed.first()?.tensors.len()) }));
    for step in &steps[steps.len().saturating_sub(STEPS)..] {
        table.row(&format!("state behind step {step}"), |run| {
            run.hashed.iter().find(|line| line.step == *step).map(hash)
        });
    }
    table.markup("the last hashed steps")
}

fn hash(line: &StepHashes) -> Markup {
    let short: String = line.state.chars().take(SHORT).collect();
    html! { code title=(cut(&line.state, LONG)) { (short) } }
}

/// Compares every run with hashes with the first that has some.
fn against_first(runs: &[Run]) -> Markup {
    let mut hashed = runs.iter().filter(|run| !run.hashed.is_empty());
    let Some(first) = hashed.next() else { return html! {} };
    html! { ul { @for run in hashed {
        li { (label(run)) " beside " (label(first)) ": " (beside(first, run)) }
    } } }
}

fn beside(first: &Run, run: &Run) -> String {
    let found = bisect([&first.logged.folder, &run.logged.folder].map(PathBuf::as_path));
    match found {
        Ok(Bisected { first: None, steps, .. }) => {
            format!("bit-identical after {} that both have hashed", count(steps, "step"))
        }
        Ok(Bisected { first: Some(Difference { step, kinds, divergence }), .. }) => {
            let differ = kinds.iter().filter(|(_, (names, _))| !names.is_empty());
            let kinds: Vec<String> = differ
                .map(|(kind, (names, all))| format!("{} of {all} {kind}", names.len()))
                .collect();
            let divergence =
                divergence.map(|divergence| format!("; first {divergence}")).unwrap_or_default();
            format!("differ first in step {step}, in {}{divergence}", kinds.join(", "))
        }
        Err(why) => why.to_string(),
    }
}
