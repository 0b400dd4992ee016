//! The panel of the plan beside measurements: time, bytes and memory of a step.

use annulus_experiment::tags;
use annulus_memory::Class;
use annulus_plan::RankPlan;
use annulus_simulate::Estimate;
use annulus_train::median;
use maud::{Markup, html};

use crate::parts::{Panel, absent, bytes, dash, label, number, seconds};
use crate::run::Run;
use crate::{Planned, memory};

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "plan", title: "Plan beside measured", body: body(runs) }
}

/// A row: its name, how its values are written, and a run's planned and measured value.
struct Row {
    name: &'static str,
    shown: fn(f64) -> Markup,
    of: fn(&Of<'_>) -> [Option<f64>; 2],
}

/// A run with the estimate of its step.
struct Of<'a> {
    run: &'a Run,
    ranks: Option<Vec<RankPlan>>,
    estimate: Option<Estimate>,
}

const ROWS: [Row; 9] = [
    Row { name: "time of a step", shown: seconds, of: |of| [of.step(), of.measured_step()] },
    Row {
        name: "tokens per second",
        shown: whole,
        of: |of| {
            [of.step().map(|step| of.tokens() / step), of.middle(tags::SPEED_TOKENS_PER_SECOND)]
        },
    },
    Row {
        name: "exposed communication of a step",
        shown: seconds,
        of: |of| [of.estimate.as_ref().map(|estimate| estimate.exposed), None],
    },
    Row {
        name: "model FLOP/s utilization (mfu)",
        shown: share,
        of: |of| [None, of.middle(tags::SPEED_MFU)],
    },
    Row {
        name: "bytes sent per step, all ranks",
        shown: bytes,
        of: |of| {
            [of.planned(RankPlan::sent).map(|ranks| ranks.iter().sum()), of.sent(f64::max, true)]
        },
    },
    Row {
        name: "bytes sent per step, most of a rank",
        shown: bytes,
        of: |of| [of.most(RankPlan::sent), of.sent(f64::max, false)],
    },
    Row {
        name: "peak memory of the fullest rank",
        shown: bytes,
        of: |of| [of.most(|rank| rank.peak), memory::most(of.run, tags::MEMORY_PEAK)],
    },
    Row {
        name: "activations, most of a rank",
        shown: bytes,
        of: |of| {
            let measured = memory::most(of.run, tags::MEMORY_ACTIVATIONS);
            [of.most(|rank| rank.peak_by_class[Class::Activations]), measured]
        },
    },
    Row {
        name: "key/value, most of a rank",
        shown: bytes,
        of: |of| {
            let measured = memory::most(of.run, tags::MEMORY_KEY_VALUE);
            [of.most(|rank| rank.peak_by_class[Class::KeyValue]), measured]
        },
    },
];

impl Of<'_> {
    fn new(run: &Run) -> Of<'_> {
        let of =
            |Planned { plan, cluster }: &Planned| Estimate::of(plan, cluster.as_ref().ok()?).ok();
        let estimate = run.planned.as_ref().ok().and_then(of);
        Of { run, ranks: memory::planned(run), estimate }
    }

    fn step(&self) -> Option<f64> {
        self.estimate.as_ref().map(|estimate| estimate.step)
    }

    /// The number of tokens of a step.
    fn tokens(&self) -> f64 {
        let data = &self.run.phase.data;
        (data.batch * data.tokens) as f64
    }

    fn measured_step(&self) -> Option<f64> {
        let speeds = self.run.in_phase(tags::SPEED_TOKENS_PER_SECOND).into_iter();
        median(speeds.map(|speed| self.tokens() / speed))
    }

    fn middle(&self, tag: &str) -> Option<f64> {
        median(self.run.in_phase(tag))
    }

    /// Bytes sent in the last logged step: of all ranks together, or of the ranks as `pick` combines them.
    fn sent(&self, pick: fn(f64, f64) -> f64, all: bool) -> Option<f64> {
        let ranks = self.run.ranks_in_phase(tags::COMM_BYTES).pop()?.into_iter();
        if all { Some(ranks.sum()) } else { ranks.reduce(pick) }
    }

    fn planned(&self, of: impl Fn(&RankPlan) -> u64) -> Option<Vec<f64>> {
        Some(self.ranks.as_ref()?.iter().map(|rank| of(rank) as f64).collect())
    }

    fn most(&self, of: impl Fn(&RankPlan) -> u64) -> Option<f64> {
        self.planned(of)?.into_iter().reduce(f64::max)
    }
}

fn body(runs: &[Run]) -> Markup {
    let all: Vec<Of<'_>> = runs.iter().map(Of::new).collect();
    let rows: Vec<(&Row, Vec<[Option<f64>; 2]>)> =
        ROWS.iter().map(|row| (row, all.iter().map(row.of).collect())).collect();
    let known = |values: &Vec<[Option<f64>; 2]>| values.iter().flatten().any(Option::is_some);
    if !rows.iter().any(|(_, values)| known(values)) {
        let way_out = html! { code { "every.log" } " says every how many steps it is measured." };
        return html! { (absent("No step has been measured.", &way_out)) (reasons(runs)) };
    }
    html! {
        table {
            thead {
                tr { th {} @for run in runs { th colspan="3" { (label(run)) } } }
                tr { th {} @for _ in runs { th { "planned" } th { "measured" } th { "ratio" } } }
            }
            tbody {
                @for (row, values) in rows.iter().filter(|(_, values)| known(values)) {
                    tr { th scope="row" { (row.name) } @for both in values { (cells(row, *both)) } }
                }
            }
        }
        p.note {
            "Times are medians over logged steps of the phase that the run is in; bytes are of its last logged step, "
            "memory is the most of all its logged steps. The ratio is measured over planned."
        }
        (reasons(runs))
    }
}

fn cells(row: &Row, [planned, measured]: [Option<f64>; 2]) -> Markup {
    let cell = |value: Option<f64>| value.map_or_else(dash, row.shown);
    let ratio = planned.zip(measured).filter(|(planned, _)| *planned > 0.0);
    html! {
        td { (cell(planned)) }
        td { (cell(measured)) }
        td { @match ratio {
            Some((planned, measured)) => (number(measured / planned, &format!("{:.2}", measured / planned))),
            None => (dash()),
        } }
    }
}

/// The cluster that plans are made for, and why a run has no plan.
fn reasons(runs: &[Run]) -> Markup {
    html! {
        ul {
            @for run in runs {
                li { (label(run)) ": " @match &run.planned {
                    Err(why) => { "there is no plan: " (why) },
                    Ok(Planned { cluster: Ok(cluster), .. }) => { "times are planned on " (cluster.name) },
                    Ok(Planned { cluster: Err(why), .. }) => { "times are not planned: " (why) },
                } }
            }
        }
    }
}

fn whole(value: f64) -> Markup {
    number(value, &format!("{value:.0}"))
}

fn share(value: f64) -> Markup {
    number(value, &format!("{:.1} %", 100.0 * value))
}
