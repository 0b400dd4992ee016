//! The panel of the runs' manifests: program, data, weights, machine, and every start.

use annulus_text::date_and_time;
use annulus_train::{Manifest, RunStart};
use maud::{Markup, html};

use crate::parts::{Panel, Table, absent, absent_of, cut, dash, label, word};
use crate::run::Run;

/// The most starts of a run that are listed: the last ones.
const STARTS: usize = 10;
/// The most characters of a command line, and of other words.
const LONG: [usize; 2] = [600, 200];

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "manifest", title: "Manifest", body: body(runs) }
}

fn body(runs: &[Run]) -> Markup {
    let has = |run: &&Run| run.logged.manifest.is_some();
    let way_out = html! {
        "every run writes " code { "manifest.json" } " into its " code { "output" } ": it was removed, or not copied."
    };
    if !runs.iter().any(|run| has(&run)) {
        return absent("No run has a manifest:", &way_out);
    }
    html! {
        (origins(runs))
        @for (run, manifest) in runs.iter().filter_map(|run| Some((run, run.logged.manifest.as_ref()?))) {
            h3 { (label(run)) ", its starts" }
            (attempts(&manifest.attempts))
        }
        (absent_of(runs.iter().filter(|run| !has(run)), &way_out))
    }
}

fn origins(runs: &[Run]) -> Markup {
    type Said = fn(&Manifest) -> Option<String>;
    let rows: [(&str, Said); 13] = [
        ("version", |made| Some(made.version.clone())),
        ("commit", |made| Some(made.commit.clone())),
        ("program, hash", |made| Some(made.binary.clone())),
        ("experiment as given, hash", |made| Some(made.experiment.clone())),
        ("data, hash", |made| Some(made.data.clone())),
        ("first weights, hash", |made| Some(made.weights.clone())),
        ("forked from", |made| Some(made.fork.as_ref()?.from.display().to_string())),
        ("processor", |made| Some(made.machine.cpu.clone())),
        ("cores", |made| Some(made.machine.cores.to_string())),
        ("vector instructions", |made| made.machine.vector.clone()),
        ("GPU", |made| made.machine.kernels.clone()),
        ("system", |made| Some(made.machine.system.clone())),
        ("strategy chosen by", |made| made.choice.as_ref().map(|_| "auto".to_owned())),
    ];
    let mut table = Table::of(runs);
    for (name, said) in rows {
        table.row(name, |run| {
            let said = run.logged.manifest.as_ref().and_then(said)?;
            Some(word(&said, LONG[1]))
        });
    }
    table.markup("what made it")
}

fn attempts(all: &[RunStart]) -> Markup {
    let earlier = all.len().saturating_sub(STARTS);
    html! {
        @if earlier > 0 { p.note { (earlier) " earlier starts are left out." } }
        table {
            thead { tr {
                th { "start, UTC" } th { "end, UTC" } th { "ending" } th { "from step" } th { "ranks" } th { "strategy" } th { "processes" }
                th { "command" }
            } }
            tbody { @for one in &all[earlier..] { tr {
                td { (date_and_time(one.start)) }
                td { @match one.end { Some(end) => (date_and_time(end)), None => (dash()) } }
                td { (one.ending.as_deref().map_or("running, or killed".to_owned(), |ending| cut(ending, LONG[1]))) }
                td { (one.resumed_from.unwrap_or_default()) }
                td { (one.ranks) }
                td { (one.strategy) }
                td { (one.processes.len().max(1)) }
                td { code { (cut(&one.command.join(" "), LONG[0])) } }
            } } }
        }
    }
}
