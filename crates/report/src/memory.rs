//! The panel of memory by class and rank: the measured maximum, and the plan.

use annulus_experiment::tags::{MEMORY_PEAK, memory_of};
use annulus_figure::{Bar, Bars};
use annulus_memory::Class;
use annulus_plan::RankPlan;
use annulus_text::size;
use annulus_train::process_memory;
use maud::{Markup, html};

use crate::Planned;
use crate::parts::{Panel, absent, bytes, dash, figure, label};
use crate::run::Run;

/// The most ranks with a column.
const RANKS: usize = 8;
/// Bytes per unit of the drawing.
const MIB: f64 = 1_048_576.0;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "memory", title: "Memory by class", body: body(runs) }
}

/// The planned memory of the run's ranks, with the cores that the run has; `None` without a plan.
pub(crate) fn planned(run: &Run) -> Option<Vec<RankPlan>> {
    let Planned { plan, .. } = run.planned.as_ref().ok()?;
    let manifest = run.logged.manifest.as_ref();
    Some(
        manifest
            .map_or_else(|| plan.ranks.clone(), |manifest| plan.with_cores(manifest.machine.cores)),
    )
}

/// The measured maximum of every rank over all logged steps of the run's phase; empty where nothing was measured.
pub(crate) fn by_rank(run: &Run, tag: &str) -> Vec<f64> {
    let mut most: Vec<f64> = Vec::new();
    for ranks in run.ranks_in_phase(tag) {
        most.resize(most.len().max(ranks.len()), 0.0);
        most.iter_mut().zip(ranks).for_each(|(most, bytes)| *most = most.max(bytes));
    }
    most
}

/// The measured maximum of any rank.
pub(crate) fn most(run: &Run, tag: &str) -> Option<f64> {
    by_rank(run, tag).into_iter().reduce(f64::max)
}

/// A row of a run: a memory class, or all classes at once.
struct Line {
    name: &'static str,
    measured: Vec<f64>,
    planned: Vec<f64>,
}

fn lines(run: &Run) -> Vec<Line> {
    let ranks = planned(run).unwrap_or_default();
    let classes = Class::ALL.map(|class| Line {
        name: shown(class),
        measured: by_rank(run, &memory_of(class.name())),
        planned: ranks.iter().map(|rank| rank.peak_by_class[class] as f64).collect(),
    });
    let all = Line {
        name: "all at once",
        measured: by_rank(run, MEMORY_PEAK),
        planned: ranks.iter().map(|rank| rank.peak as f64).collect(),
    };
    let lines = classes.into_iter().chain([all]);
    lines.filter(|line| !line.measured.is_empty()).collect()
}

fn shown(class: Class) -> &'static str {
    match class {
        Class::KeyValue => "key/value",
        other => other.name(),
    }
}

fn body(runs: &[Run]) -> Markup {
    let way_out = html! {
        code { "every.log" } " says every how many steps memory is logged, with " code { (MEMORY_PEAK) }
        " and a tag for every class."
    };
    if runs.iter().all(|run| lines(run).is_empty()) {
        return absent("No memory has been logged.", &way_out);
    }
    html! { @for run in runs {
        @let lines = lines(run);
        h3 { (label(run)) }
        @if lines.is_empty() { (absent("It has logged no memory.", &way_out)) }
        @else { (bars(run, &lines)) (table(&lines)) (processes(run)) }
    } }
}

/// A bar chart of the fullest rank of each class.
fn bars(run: &Run, lines: &[Line]) -> Markup {
    let fullest = |values: &[f64]| values.iter().copied().reduce(f64::max);
    let row = |line: &Line| {
        let (measured, planned) =
            (fullest(&line.measured).unwrap_or_default(), fullest(&line.planned));
        let beside =
            planned.map_or_else(String::new, |bytes| format!(" of {}", size(bytes as u64)));
        Bar {
            name: line.name.to_owned(),
            value: measured / MIB,
            mark: planned.map(|bytes| bytes / MIB),
            text: format!("{}{beside}", size(measured as u64)),
            color: run.place,
        }
    };
    let picture = Bars {
        title: "memory of the fullest rank, by class".to_owned(),
        x: "MiB".to_owned(),
        rows: lines.iter().map(row).collect(),
    };
    figure(
        &picture.picture(),
        &html! {
            "Bars: the most that a rank has held of a class in a logged step. Black marks: the plan. Classes peak at different times, "
            "so all at once is less than their sum."
        },
    )
}

fn table(lines: &[Line]) -> Markup {
    let ranks = lines.iter().map(|line| line.measured.len()).max().unwrap_or_default();
    let cell =
        |values: &[f64], rank: usize| values.get(rank).map_or_else(dash, |value| bytes(*value));
    html! {
        table {
            thead { tr { th { "measured, " small { "planned" } } @for rank in 0..ranks.min(RANKS) { th { "rank " (rank) } } } }
            tbody { @for line in lines { tr {
                th scope="row" { (line.name) }
                @for rank in 0..ranks.min(RANKS) { td { (cell(&line.measured, rank)) br; small { (cell(&line.planned, rank)) } } }
            } } }
        }
        @if ranks > RANKS { p.note { "The first " (RANKS) " of " (ranks) " ranks; the picture is of the fullest of all." } }
    }
}

/// The resident memory of processes, where the system reports it.
fn processes(run: &Run) -> Markup {
    let Ok(Planned { plan, .. }) = &run.planned else { return html! {} };
    let held = process_memory(plan, &run.logged.last());
    html! {
        @if !held.is_empty() {
            table {
                thead { tr { th { "resident" } th { "measured" } th { "planned" } } }
                tbody { @for (process, held) in held.iter().enumerate() { tr {
                    th scope="row" { "process " (process) }
                    td { (bytes(held.resident as f64)) } td { (held.planned.map_or_else(dash, |planned| bytes(planned as f64))) }
                } } }
            }
        }
    }
}
