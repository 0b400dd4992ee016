//! The panel of losses over steps: training as a line, evaluation dashed, one color per run.

use annulus_experiment::tags::{
    EVALUATE_BIGRAM_ENTROPY, EVALUATE_LOSS as EVALUATED, TRAIN_LOSS as TRAINED,
};
use annulus_figure::{Axis, Curves};
use maud::{Markup, html};

use crate::parts::{Curve, Panel, Table, absent, absent_of, figure, notes, number, plain};
use crate::run::Run;

pub(crate) fn panel(runs: &[Run]) -> Panel {
    Panel { id: "loss", title: "Loss over steps", body: body(runs) }
}

fn body(runs: &[Run]) -> Markup {
    let has = |run: &Run, tag| !run.logged.numbers(tag).is_empty();
    let trained = html! { code { "every.log" } " says every how many steps " code { (TRAINED) } " is logged." };
    let evaluated = html! {
        "for " code { (EVALUATED) } " " code { "data.evaluate" } " says how many sequences are held out, and "
        code { "every.evaluate" } " every how many steps they are evaluated."
    };
    if !runs.iter().any(|run| has(run, TRAINED)) {
        return absent("No step has been logged.", &trained);
    }
    html! {
        (curves(runs))
        (table(runs))
        (absent_of(runs.iter().filter(|run| !has(run, TRAINED)), &trained))
        (absent_of(runs.iter().filter(|run| !has(run, EVALUATED)), &evaluated))
        @for run in runs.iter().filter(|run| run.logged.torn) {
            p.absent {
                "The last line of " code { "metrics.jsonl" } " of run " (run.letter())
                " is torn, and left out: the run is writing it, or was killed there."
            }
        }
    }
}

fn curves(runs: &[Run]) -> Markup {
    let alone = runs.len() == 1;
    let (mut curves, mut dashed) = (Vec::new(), Vec::new());
    for run in runs {
        let [trained, evaluated] = [TRAINED, EVALUATED].map(|tag| run.logged.numbers(tag));
        let [first, second] = if alone {
            ["training".to_owned(), "evaluation".to_owned()]
        } else {
            // One legend entry for both, which share a color.
            [run.titled(), String::new()]
        };
        curves.push(Curve::of(run, first, &trained, false));
        if !evaluated.is_empty() {
            dashed.push(Curve::of(run, second, &evaluated, true));
        }
    }
    // Evaluation is drawn above the lines.
    curves.extend(dashed);
    let picture = Curves {
        title: "training and evaluation loss".to_owned(),
        x: Axis::plain("step"),
        y: Axis::plain("loss in nats"),
        series: curves.iter().map(|curve| curve.series.clone()).collect(),
    };
    let caption = html! {
        "Lines: " code { (TRAINED) } ", the loss of every logged step. Dashed: " code { (EVALUATED) }
        ", of sequences that are held out." (notes(&curves))
    };
    figure(&picture.picture(), &caption)
}

fn table(runs: &[Run]) -> Markup {
    let at = |found: Option<(u64, f64)>| {
        let (step, value) = found?;
        Some(html! { (plain(value)) small { " step " (step) } })
    };
    let finite = |mut values: Vec<(u64, f64)>| {
        values.retain(|(_, value)| value.is_finite());
        values.into_iter()
    };
    let rising = |a: &(u64, f64), b: &(u64, f64)| a.1.total_cmp(&b.1);
    let mut table = Table::of(runs);
    let of = |run: &Run, tag| run.logged.numbers(tag);
    table.row(&format!("{TRAINED}, first"), |run| at(of(run, TRAINED).first().copied()));
    table.row(&format!("{TRAINED}, last"), |run| at(of(run, TRAINED).last().copied()));
    table.row(&format!("{TRAINED}, least"), |run| at(finite(of(run, TRAINED)).min_by(rising)));
    table.row(&format!("{TRAINED}, most"), |run| at(finite(of(run, TRAINED)).max_by(rising)));
    table.row(&format!("{EVALUATED}, last"), |run| at(of(run, EVALUATED).last().copied()));
    table.row(&format!("{EVALUATED}, least"), |run| at(finite(of(run, EVALUATED)).min_by(rising)));
    table.row("bigram entropy of the same text", |run| {
        at(of(run, EVALUATE_BIGRAM_ENTROPY).last().copied())
    });
    table.row("logged steps", |run| {
        let count = of(run, TRAINED).len();
        Some(number(count as f64, &count.to_string()))
    });
    table.markup("nats")
}
