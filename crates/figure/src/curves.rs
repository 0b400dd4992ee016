//! Curves with their errors.

use crate::picture::{Align, BLACK, Color, GREY, LETTER};
use crate::scale::Scale;
use crate::svg::hex;
use crate::{Axis, Picture};

const SIZE: [u32; 2] = [960, 600];
/// Around the field: left, top, right, bottom.
const EDGES: [f64; 4] = [90.0, 80.0, 30.0, 70.0];
/// Half of the width of a mark at a point, and of the line at an end of its error.
const MARK: f64 = 3.0;
/// The most points of a curve that have marks: between more of them there is no room for its line.
const MARKED: usize = 64;
/// The width of the last curve's line, and of dashed ones. Each one before is wider by `RIM`, up to `WIDEST`, so that curves that lie on each
/// other are all seen.
const LINE: f64 = 2.0;
const RIM: f64 = 2.0;
const WIDEST: f64 = 6.0;
/// The first six are told apart by those who see red and green alike too (Okabe and Ito).
pub(crate) const COLORS: [Color; 16] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x22, 0x22, 0x22],
    [0x8c, 0x56, 0x4b],
    [0x6a, 0x3d, 0x9a],
    [0x99, 0x99, 0x33],
    [0xaa, 0x00, 0x44],
    [0x00, 0x33, 0x66],
    [0x66, 0xcc, 0x66],
    [0xff, 0x99, 0x99],
    [0x88, 0x88, 0x88],
    [0xb3, 0x99, 0xff],
];

/// A point of a curve, with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The x coordinate, in the axis's unit.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Half the length of the error bar; 0: no bar.
    pub error: f64,
}

/// A curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The name in the legend; empty: the curve is not in the legend.
    pub name: String,
    /// Points by ascending x.
    pub points: Vec<Point>,
    /// The index of the color; `None`: the curve's own index in the figure.
    pub color: Option<usize>,
    /// Whether the line is dashed: the second of two curves of one color.
    pub dashed: bool,
}

/// The color with this index, as HTML and SVG write it: `#0072b2`. Indices beyond the last color start again.
pub fn color(place: usize) -> String {
    hex(COLORS[place % COLORS.len()])
}

/// The most points of a curve in a picture: about one in two pixels.
pub const POINTS: usize = 400;

/// At most `most` points, each the mean of as many neighbours as the second value says: a curve of more points than a picture
/// has pixels is slow to draw and shows no more. Means of several points have no error.
pub fn thinned(points: &[Point], most: usize) -> (Vec<Point>, usize) {
    let together = points.len().div_ceil(most.max(1)).max(1);
    if together == 1 {
        return (points.to_vec(), 1);
    }
    let mean = |group: &[Point]| {
        let of =
            |value: fn(&Point) -> f64| group.iter().map(value).sum::<f64>() / group.len() as f64;
        Point { x: of(|point| point.x), y: of(|point| point.y), error: 0.0 }
    };
    (points.chunks(together).map(mean).collect(), together)
}

/// A figure of curves over the same axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// The title, drawn above the curves.
    pub title: String,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
}

impl Curves {
    /// The figure, drawn.
    pub fn picture(&self) -> Picture {
        let mut picture = Picture::new(SIZE[0], SIZE[1]);
        let [left, top, right, bottom] = EDGES;
        let [width, height] = SIZE.map(f64::from);
        let (right, bottom) = (width - right - self.legend(), height - bottom);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let xs = points().map(|point| point.x);
        let x = Scale::of(xs, self.x.logarithmic, [left, right], 0.03);
        let y = Scale::of(self.heights(), self.y.logarithmic, [bottom, top], 0.08);

        for (tick, text) in x.ticks() {
            let at = x.at(tick);
            picture.line([at, top], [at, bottom], 1.0, GREY);
            picture.text([at, bottom + LETTER[1]], &text, Align::Middle);
        }
        for (tick, text) in y.ticks() {
            let at = y.at(tick);
            picture.line([left, at], [right, at], 1.0, GREY);
            picture.text([left - LETTER[0], at], &text, Align::Right);
        }
        picture.line([left, top], [left, bottom], 1.0, BLACK);
        picture.line([left, bottom], [right, bottom], 1.0, BLACK);
        picture.text([width / 2.0, LETTER[1]], &self.title, Align::Middle);
        picture.text([left, top - LETTER[1]], &self.y.label, Align::Left);
        let below = [f64::midpoint(left, right), height - LETTER[1]];
        picture.text(below, &self.x.label, Align::Middle);
        let mut line = top;
        for (index, series) in self.series.iter().enumerate() {
            let color = COLORS[series.color.unwrap_or(index) % COLORS.len()];
            draw(&mut picture, series, [x, y], self.width(index), color);
            if self.is_named(series) {
                line += LETTER[1];
                let [from, to, name] = [1.0, 3.0, 4.0].map(|letters| right + letters * LETTER[0]);
                picture.path(vec![[from, line], [to, line]], 3.0, color, series.dashed);
                picture.colored([name, line], &series.name, Align::Left, color);
            }
        }
        picture
    }

    /// Everything that must be within the field from its lower to its upper edge.
    fn heights(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let ends = points.flat_map(|point| [point.y - point.error, point.y + point.error]);
        ends.chain(self.y.range.into_iter().flatten())
    }

    /// The width of a curve's line: dashes leave what lies below them to be seen.
    fn width(&self, index: usize) -> f64 {
        let later = self.series[index + 1..].iter().filter(|series| !series.dashed).count() as f64;
        if self.series[index].dashed { LINE } else { (LINE + RIM * later).min(WIDEST) }
    }

    /// Whether a curve is named beside the field: one alone needs no name.
    fn is_named(&self, series: &Series) -> bool {
        self.series.len() > 1 && !series.name.is_empty()
    }

    /// How wide the names beside the field are, with their lines.
    fn legend(&self) -> f64 {
        let named = self.series.iter().filter(|series| self.is_named(series));
        let longest = named.map(|series| series.name.chars().count()).max();
        longest.map_or(0.0, |letters| LETTER[0] * (letters as f64 + 2.0))
    }
}

fn draw(picture: &mut Picture, series: &Series, [x, y]: [Scale; 2], width: f64, color: Color) {
    let place = |point: &Point| [x.at(point.x), y.at(point.y)];
    let is_place = |at: &[f64; 2]| at.iter().all(|number| number.is_finite());
    let points = series.points.iter().filter(|point| is_place(&place(point)));
    picture.path(points.clone().map(place).collect(), width, color, series.dashed);
    for point in points {
        let [u, v] = place(point);
        if series.points.len() <= MARKED {
            picture.fill([u - MARK, v - MARK], [2.0 * MARK, 2.0 * MARK], color);
        }
        if point.error > 0.0 {
            // An end that has no place, such as one below 0 on a logarithmic axis, is not drawn.
            let ends = [point.y - point.error, point.y + point.error].map(|end| y.at(end));
            let [low, high] = ends.map(|end| if end.is_finite() { end } else { v });
            picture.line([u, low], [u, high], 1.0, color);
            for end in ends.into_iter().filter(|end| end.is_finite()) {
                picture.line([u - MARK, end], [u + MARK, end], 1.0, color);
            }
        }
    }
}
