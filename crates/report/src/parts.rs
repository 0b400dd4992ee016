//! What panels are made of: figures, tables, numbers, and what is said where there is nothing to show.

use annulus_figure::{Picture, Point, Series, thinned};
use annulus_plan::{duration, size};
use maud::{Markup, PreEscaped, html};

use crate::run::Run;

/// The most points of a drawn curve: about one in two pixels.
const POINTS: usize = 400;
/// The most bytes of all pictures of a kind on a page, one for every run.
const DRAWN: usize = 1_000_000;

/// A hash has more letters than the first; the second are shown of it.
const HASH: [usize; 2] = [39, 12];

/// A panel: its place in the page, its title and what is in it.
pub(crate) struct Panel {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) body: Markup,
}

impl Panel {
    /// As a section of the page.
    pub(crate) fn section(&self) -> Markup {
        html! { section id=(self.id) { h2 { (self.title) } (self.body) } }
    }
}

/// A table with a row for each thing and a column for each run.
pub(crate) struct Table<'a> {
    runs: &'a [Run],
    rows: Vec<Markup>,
}

impl<'a> Table<'a> {
    pub(crate) fn of(runs: &'a [Run]) -> Table<'a> {
        Table { runs, rows: Vec::new() }
    }

    /// A row, unless no run has a value.
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
            b { (run.letter()) } " " (run.short())
        }
    }
}

/// Nothing is known.
pub(crate) fn dash() -> Markup {
    html! { span.none { "–" } }
}

/// A number as it is shown, with all its digits for programs.
pub(crate) fn number(value: f64, shown: &str) -> Markup {
    html! { data value=(value) { (shown) } }
}

/// A loss, or another number of about 1.
pub(crate) fn plain(value: f64) -> Markup {
    let shown = if value.is_finite() { format!("{value:.5}") } else { "not finite".to_owned() };
    number(value, &shown)
}

/// Bytes.
pub(crate) fn bytes(value: f64) -> Markup {
    number(value, &size(value as u64))
}

/// Seconds.
pub(crate) fn seconds(value: f64) -> Markup {
    number(value, &duration(value))
}

/// What a panel says where no run has its data: what is missing, and which keys would log it.
pub(crate) fn absent(what: &str, way_out: &Markup) -> Markup {
    html! { p.absent { (what) " " (way_out) } }
}

/// The same of some of the runs, below what is there of others.
pub(crate) fn absent_of<'a>(runs: impl Iterator<Item = &'a Run>, way_out: &Markup) -> Markup {
    let missing: Vec<&Run> = runs.collect();
    html! {
        @if !missing.is_empty() {
            p.absent { @for run in missing { (label(run)) ", " } "without it: " (way_out) }
        }
    }
}

/// A picture with what it shows.
pub(crate) fn figure(picture: &Picture, caption: &Markup) -> Markup {
    html! { figure { (PreEscaped(picture.to_inline_svg())) figcaption { (caption) } } }
}

/// One of the pictures that every one of so many runs has: left out where it has more than its share of the page's bytes.
pub(crate) fn drawn(svg: String, runs: usize, caption: &Markup, instead: &Markup) -> Markup {
    let fits = svg.len() <= DRAWN / runs.max(1);
    html! {
        @if fits { figure { (PreEscaped(svg)) figcaption { (caption) } } }
        @else { p.absent { "The picture is left out: it has " (size(svg.len() as u64)) ". " (instead) } }
    }
}

/// A curve of a run in its color, and what its caption must say of it.
pub(crate) struct Curve {
    pub(crate) series: Series,
    /// Neighbours of which a drawn point is the mean.
    pub(crate) together: usize,
    /// Values that are not finite, and so not drawn.
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

/// What captions say of curves: whether points are means, and what is not drawn.
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

/// A text of a run, cut behind so many of its characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// A word of a run as code, cut behind so many of its characters; of a long hash the beginning, with the whole of it where a
/// pointer rests.
pub(crate) fn word(text: &str, most: usize) -> Markup {
    let is_hash = text.len() > HASH[0] && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    html! {
        @if is_hash { code title=(cut(text, most)) { (cut(text, HASH[1])) } }
        @else { code { (cut(text, most)) } }
    }
}
