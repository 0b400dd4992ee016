//! `annulus compare`: compares runs, as text, as JSON and as a picture.

mod columns;

use std::path::PathBuf;

use annulus_experiment::tags::{EVALUATE_LOSS, TRAIN_LOSS};
use annulus_figure::{Axis, Curves, POINTS, Picture, Point, Series, thinned};
use annulus_text::{duration, size, wrapped};
use annulus_train::{
    Aligned, Compared, Comparison, Differing, Distance, LeftOut, MOST_RUNS, Row, compare,
    run_label, run_letter, short_hash,
};
use clap::Args;
use serde_json::json;

use crate::compare::columns::Columns;
use crate::failure::Failure;
use crate::values::svg;
use crate::{Done, print};

/// Smaller differences are written with an exponent.
const SMALL: f64 = 1e-2;
/// The shortest time that is compared, in seconds: manifests have whole seconds only.
const SHORT: f64 = 10.0;
/// The most letters of how a run ended.
const ENDING: usize = 60;
/// The row of model FLOPs utilisation.
const MFU: &str = "MFU, median";

#[derive(Args, Debug)]
pub(crate) struct Compare {
    /// Run folders, 2 to 16; differences are to the first
    #[arg(required = true, num_args = 2..=MOST_RUNS, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a picture of all loss curves, as SVG
    #[arg(long, value_name = "PATH", value_parser = svg)]
    svg: Option<PathBuf>,
    /// Write a picture of all loss curves, as PNG
    #[arg(long, value_name = "PATH")]
    png: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Compare) -> Done {
    let found = compare(&arguments.runs)?;
    let picture = picture(&found);
    if let Some(path) = &arguments.svg {
        print::file(path, picture.to_svg().as_bytes())?;
    }
    if let Some(path) = &arguments.png {
        let drawn = picture.to_png();
        let drawn = drawn.map_err(|error| Failure::internal(error.to_string()))?;
        print::file(path, &drawn)?;
    }
    let value =
        serde_json::to_value(&found).map_err(|error| Failure::internal(error.to_string()))?;
    print::either(arguments.json, || json!(value), || text(&found))?;
    Ok(0)
}

/// The letter that stands for a run in tables, since names can be long.
fn letter(index: usize) -> String {
    run_letter(index).to_string()
}

fn text(found: &Comparison) -> String {
    let mut parts = vec![listed(&found.runs), differing(found)];
    parts.extend(found.curves.iter().map(|curve| losses(curve, &found.runs)));
    parts.extend(other_texts(found));
    parts.extend(found.left_out.iter().map(left_out));
    parts.push(costs(&found.runs));
    parts.join("\n\n")
}

/// The runs whose evaluations cannot be compared with the first run's.
fn other_texts(found: &Comparison) -> Option<String> {
    let letters: Vec<String> = found.other_texts.iter().map(|run| letter(*run)).collect();
    let is_evaluated = found.curves.iter().any(|curve| curve.tag.starts_with(EVALUATE_LOSS));
    (is_evaluated && !letters.is_empty()).then(|| {
        let text = format!(
            "{EVALUATE_LOSS}: {} held out other text than A, or other sequences of it, so differences are not only of what was learned; \
             `annulus evaluate` with the same `evaluation.path` for all measures them on one text",
            letters.join(", ")
        );
        wrapped(&text, 2)
    })
}

/// The runs with their letters.
fn listed(runs: &[Compared]) -> String {
    let line = |(index, run): (usize, &Compared)| {
        let ending = run.ending.as_deref().unwrap_or("still running, or killed");
        let (first, last) = run.steps;
        let ending = shortened(ending);
        format!("{}  {}\n   steps {first} to {last}, {ending}", letter(index), run.folder.display())
    };
    runs.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// The beginning of how a run ended, as an error can be long and have several lines: whole, or up to a clause or a word.
fn shortened(ending: &str) -> String {
    let line = ending.lines().next().unwrap_or_default();
    let Some((most, _)) = line.char_indices().nth(ENDING) else { return line.to_owned() };
    // What follows the limit may end the last clause or word in it.
    let within =
        |mark: &str| line.match_indices(mark).map(|(at, _)| at).take_while(|at| *at <= most).last();
    match within(", ").max(within("; ")).or(within(" ")).filter(|at| *at > 0) {
        Some(at) if line[at..].starts_with([',', ';']) => line[..at].to_owned(),
        at => format!("{} …", &line[..at.unwrap_or(most)]),
    }
}

/// The keys of experiments and manifests that differ.
fn differing(found: &Comparison) -> String {
    let all: Vec<&Differing> = found.keys.iter().chain(&found.origins).collect();
    if all.is_empty() {
        return "what differs: nothing but the folder".to_owned();
    }
    let mut table = Columns::new("what differs", (0..found.runs.len()).map(letter));
    for one in all {
        let default = one.default.as_deref();
        table.add(&one.name, one.values.iter().map(|value| cell(value.as_deref(), default)));
    }
    table.text()
}

/// A value as shown: hashes are shortened, and defaults are marked.
fn cell(value: Option<&str>, default: Option<&str>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    let number = |text: &str| text.parse::<f64>().ok();
    let is_default = default.is_some_and(|default| {
        default == value || number(default).is_some_and(|default| number(value) == Some(default))
    });
    match short_hash(value) {
        Some(short) => short.to_owned(),
        None if is_default => format!("{value} (default)"),
        None => value.to_owned(),
    }
}

/// A loss curve at steps that all runs have, with differences to the first run, then a summary of the differences over all steps.
fn losses(curve: &Aligned, runs: &[Compared]) -> String {
    let pair = |value: &str, difference: &str| format!("{value:>9} {difference:>9}");
    let head = |index: usize| match index {
        0 => letter(0),
        _ => pair(&letter(index), &format!("{} - A", letter(index))),
    };
    let mut table = Columns::new(&curve.tag, (0..runs.len()).map(head));
    let cells = |row: &Row| -> Vec<String> {
        let first = row.values[0];
        let cell = |(index, &value): (usize, &f64)| match index {
            0 => number(value),
            _ => pair(&number(value), &difference(value - first)),
        };
        row.values.iter().enumerate().map(cell).collect()
    };
    for row in &curve.rows {
        table.add(&format!("step {}", row.step), cells(row));
    }
    let mut lines = Vec::new();
    if curve.common == 0 {
        lines.push(format!("{}: the runs have no step in common", curve.tag));
    } else {
        lines.push(table.text());
    }
    if curve.against_first.iter().any(|distance| distance.common > 0) {
        lines.extend(distances(curve));
    }
    if curve.common == 0 || curve.last.iter().any(|last| last.0 != curve.last[0].0) {
        let last = |(index, (step, value)): (usize, &(u64, f64))| {
            format!("  {} ends at step {step} with {}", letter(index), number(*value))
        };
        lines.extend(curve.last.iter().enumerate().map(last));
    }
    lines.join("\n")
}

/// A loss as text.
fn number(value: f64) -> String {
    if value.is_nan() { "not finite".to_owned() } else { format!("{value:.5}") }
}

/// A difference of losses as text, with at least two digits; a dash where it is unknown, as one of them is not finite.
fn difference(by: f64) -> String {
    match by {
        0.0 => "0".to_owned(),
        unknown if !unknown.is_finite() => "-".to_owned(),
        small if small.abs() < SMALL => format!("{small:+.1e}"),
        by => format!("{by:+.4}"),
    }
}

/// A line about a curve that some runs lack.
fn left_out(LeftOut { tag, without }: &LeftOut) -> String {
    let without: Vec<String> = without.iter().map(|run| letter(*run)).collect();
    format!("{tag} is left out: {} logged none", without.join(", "))
}

/// How each run differs from the first over all steps that the two have in common.
fn distances(curve: &Aligned) -> Vec<String> {
    let steps = |common| match common {
        1 => "the only common step".to_owned(),
        count => format!("all {count} common steps"),
    };
    let is_alike = |one: &Distance| one.equal_bits && one.common == curve.common;
    if curve.against_first.iter().all(is_alike) {
        return vec![format!("  equal bits at {}", steps(curve.common))];
    }
    let of = |(index, distance): (usize, &Distance)| {
        let name = letter(index + 1);
        let steps = steps(distance.common);
        match (distance.first, distance.largest) {
            _ if distance.common == 0 => format!("  {name} and A have no step in common"),
            (Some(first), Some((step, by))) => format!(
                "  {name} - A is largest at step {step}: {}; bits differ from step {first} on",
                difference(by)
            ),
            (Some(first), None) => format!("  {name}: bits differ from step {first} on"),
            _ => format!("  {name}: equal bits at {steps}"),
        }
    };
    let of = |one: (usize, &Distance)| match one.1.not_finite {
        Some(step) => format!("{}; first not finite at step {step}", of(one)),
        None => of(one),
    };
    curve.against_first.iter().enumerate().map(of).collect()
}

/// Speed and memory, with their ratio to the first run's.
fn costs(runs: &[Compared]) -> String {
    type Of = fn(&Compared) -> Option<f64>;
    let time = |seconds: f64| match seconds {
        short if short < SHORT => format!("{short:.0} s"),
        long => duration(long),
    };
    // Each with the least value for which a ratio is meaningful.
    let rows: [(&str, Of, f64, fn(f64) -> String); 4] = [
        ("tokens/s, median", |run| run.tokens_per_second, 0.0, |speed| format!("{speed:.0}")),
        (MFU, |run| run.mfu, 0.0, |mfu| format!("{:.1} %", 100.0 * mfu)),
        ("time in all", |run| run.seconds.map(|seconds| seconds as f64), SHORT, time),
        ("peak memory of a rank", |run| run.memory.map(|b| b as f64), 0.0, |b| size(b as u64)),
    ];
    let mut table = Columns::new("speed and memory", (0..runs.len()).map(letter));
    for (name, of, least, shown) in rows {
        let beside = |run: &Compared, ratio: f64| match same_peak(run, &runs[0]) {
            Some(false) if name == MFU => " (other peak)".to_owned(),
            None if name == MFU => String::new(),
            _ => format!(" ({ratio:.2}x)"),
        };
        let cell = |(index, run): (usize, &Compared)| match (of(run), of(&runs[0])) {
            (Some(value), Some(first)) if index > 0 && first > least => {
                shown(value) + &beside(run, value / first)
            }
            (value, _) => value.map_or_else(|| "unknown".to_owned(), shown),
        };
        if runs.iter().any(|run| of(run).is_some()) {
            table.add(name, runs.iter().enumerate().map(cell));
        }
    }
    table.text()
}

/// Whether the MFUs of two runs are shares of the same peak, which on a CPU each run measures for itself; `None`: a peak is unknown.
fn same_peak(run: &Compared, first: &Compared) -> Option<bool> {
    Some(run.peak? == first.peak?)
}

/// The losses of all runs over their own steps.
fn picture(found: &Comparison) -> Picture {
    let against = found.curves.first().map_or(&[][..], |curve| &curve.against_first);
    let series = |(index, run): (usize, &Compared)| {
        // Equal curves would look like one.
        let whole = found.runs[0].losses.len();
        let is_first = |index: usize| {
            let is_equal = |other: &Distance| other.equal_bits && other.common == whole;
            against.get(index).is_some_and(is_equal) && run.losses.len() == whole
        };
        let equal = if index.checked_sub(1).is_some_and(is_first) { " = A" } else { "" };
        let name = run_label(index, &run.folder) + equal;
        Series { name, points: thinned(&finite(&run.losses), POINTS).0, ..Series::default() }
    };
    Curves {
        title: format!("{TRAIN_LOSS} of {} runs", found.runs.len()),
        x: Axis::plain("step"),
        y: Axis::plain("loss in nats"),
        series: found.runs.iter().enumerate().map(series).collect(),
    }
    .picture()
}

/// The finite losses, which can be drawn.
fn finite(losses: &[(u64, f64)]) -> Vec<Point> {
    let finite = losses.iter().filter(|(_, loss)| loss.is_finite());
    finite.map(|&(step, loss)| Point { x: step as f64, y: loss, error: 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_cut_at_a_clause_or_a_word() {
        let finite = "step 2: `train/grad_norm` is NaN, expected a finite number; first not finite at layer 1";
        let words = "rank 3 waits for rank 1 of a replica that has made no progress for a minute";
        let letters = "x".repeat(70);
        for (whole, shown) in [
            ("finished", "finished"),
            ("an error\nof two lines", "an error"),
            (finite, "step 2: `train/grad_norm` is NaN, expected a finite number"),
            (words, "rank 3 waits for rank 1 of a replica that has made no …"),
            (&letters, &format!("{} …", &letters[..ENDING])),
        ] {
            assert_eq!(shortened(whole), shown);
        }
    }
}
