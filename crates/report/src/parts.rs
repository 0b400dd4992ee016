//! Building blocks of panels: figures, tables, numbers, and notes on missing data.

use annulus_figure::{POINTS, Picture, Point, Series, thinned};
use annulus_text::{duration, size};
use annulus_train::{run_name, short_hash};
use maud::{Markup, PreEscaped, html};

use crate::run::Run;

/// The most bytes of all drawings of one kind on a page, one per run.
const DRAWN: usize = 1_000_000;

/// A panel: its anchor in the page, its title and its content.
pub(crate) struct Panel {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) body: Markup,
}

impl Panel {
    /// The panel as a section of the page.
    pub(crate) fn section(&self) -> Markup {
        html! { section id=(self.id) { h2 { (self.title) } (self.body) } }
    }
}

/// A table with a row per quantity and a column per run.
pub(crate) struct Table<'a> {
    runs: &'a [Run],
    rows: Vec<Markup>,
}

impl<'a> Table<'a> {
    pub(crate) fn of(runs: &'a [Run]) -> Table<'a> {
        Table { runs, rows: Vec::new() }
    }

    /// Adds a row, unless no run has a value.
    pub(crate) fn row(&mut self, name: &str, of: impl Fn(&Run) -> Option<Markup>) {
        let cells: Vec<Option<Markup>> = self.runs.iter().map(of).collect();
        if cells.iter().any(Option::is_some) {
            self.rows.push(html! {
                tr { th scope="row" { (name) } @for cell in cells { td { (cell.unwrap_or_else(dash)) } } }
            });
        }
    }

    pub(crate) fn markup(self, head: &str) -> Markup {
        html! {
            @if !self.rows.is_empty() {
                table {
                    thead { tr { th { (head) } @for run in self.runs { th { (label(run)) } } } }
                    tbody { @for row in self.rows { (row) } }
                }
            }
        }
    }
}

/// A run's letter in its color, with its name.
pub(crate) fn label(run: &Run) -> Markup {
    html! {
        span.run {
            i.swatch style=(format!("background:{}", annulus_figure::color(run.place))) {}
            b { (run.letter()) } " " (run_name(&run.logged.folder))
        }
    }
}

/// The sign for an unknown value.
pub(crate) fn dash() -> Markup {
    html! { span.none { "–" } }
}

/// A number as text, with all its digits for programs.
pub(crate) fn number(value: f64, shown: &str) -> Markup {
    html! { data value=(value) { (shown) } }
}

/// A loss, or another number of about 1, as text.
pub(crate) fn plain(value: f64) -> Markup {
    let shown = if value.is_finite() { format!("{value:.5}") } else { "not finite".to_owned() };
    number(value, &shown)
}

/// A number of bytes as text.
pub(crate) fn bytes(value: f64) -> Markup {
    number(value, &size(value as u64))
}

/// A number of seconds as text.
pub(crate) fn seconds(value: f64) -> Markup {
    number(value, &duration(value))
}

/// What a panel says where no run has its data: what is missing, and which keys would log it.
pub(crate) fn absent(what: &str, way_out: &Markup) -> Markup {
    html! { p.absent { (what) " " (way_out) } }
}

/// What a panel says below its data where some runs lack theirs: which runs, and which keys would log it.
pub(crate) fn absent_of<'a>(runs: impl Iterator<Item = &'a Run>, way_out: &Markup) -> Markup {
    let missing: Vec<&Run> = runs.collect();
    html! {
        @if !missing.is_empty() {
            p.absent { @for run in missing { (label(run)) ", " } "without it: " (way_out) }
        }
    }
}

/// A drawing with its caption.
pub(crate) fn figure(picture: &Picture, caption: &Markup) -> Markup {
    html! { figure { (PreEscaped(picture.to_inline_svg())) figcaption { (caption) } } }
}

/// One of the drawings that each of `runs` runs has, or `instead` where it exceeds its share of the page's bytes.
pub(crate) fn drawn(svg: String, runs: usize, caption: &Markup, instead: &Markup) -> Markup {
    let fits = svg.len() <= DRAWN / runs.max(1);
    html! {
        @if fits { figure { (PreEscaped(svg)) figcaption { (caption) } } }
        @else { p.absent { "The picture is left out: it has " (size(svg.len() as u64)) ". " (instead) } }
    }
}

/// A run's curve in its color, and what the caption must say about it.
pub(crate) struct Curve {
    pub(crate) series: Series,
    /// The number of neighbouring values that a drawn point is the mean of.
    pub(crate) together: usize,
    /// The number of values that are not finite, and so not drawn.
    pub(crate) left_out: usize,
}

impl Curve {
    pub(crate) fn of(run: &Run, name: String, values: &[(u64, f64)], dashed: bool) -> Curve {
        let finite = values.iter().filter(|(_, value)| value.is_finite());
        let point = |&(step, value): &(u64, f64)| Point { x: step as f64, y: value, error: 0.0 };
        let points: Vec<Point> = finite.map(point).collect();
        let left_out = values.len() - points.len();
        let (points, together) = thinned(&points, POINTS);
        let series = Series { name, points, color: Some(run.place), dashed };
        Curve { series, together, left_out }
    }
}

/// A caption's remarks on curves: whether points are means, and what is not drawn.
pub(crate) fn notes(curves: &[Curve]) -> Markup {
    let together = curves.iter().map(|curve| curve.together).max().unwrap_or(1);
    let left_out: usize = curves.iter().map(|curve| curve.left_out).sum();
    html! {
        @if together > 1 {
            " Long curves are drawn with at most " (POINTS) " points: each is the mean of up to "
            (together) " neighbouring logged steps."
        }
        @if left_out > 0 { " " (left_out) " values are not finite and not drawn." }
    }
}

/// A run's text, cut after `most` characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// A run's word as code, cut after `most` characters; of a long hash the beginning, with the whole in a tooltip.
pub(crate) fn word(text: &str, most: usize) -> Markup {
    html! {
        @if let Some(short) = short_hash(text) { code title=(cut(text, most)) { (short) " …" } }
        @else { code { (cut(text, most)) } }
    }
}
