//! Bars beside each other, each with a mark where it was expected to end.

use crate::Picture;
use crate::curves::COLORS;
use crate::picture::{Align, BLACK, GREY, LETTER};
use crate::scale::Scale;

/// The width of the field.
const WIDTH: f64 = 620.0;
/// The height of a row, and what of it stays free.
const ROW: [f64; 2] = [26.0, 8.0];
/// Above the rows, and below them.
const EDGES: [f64; 2] = [50.0, 60.0];
/// How far a mark goes beyond its bar, and how wide it is.
const MARK: [f64; 2] = [3.0, 3.0];

/// A figure of horizontal bars, which begin at 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The title, drawn above the bars.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// The bars, from the top down.
    pub rows: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The row's label.
    pub name: String,
    /// The value, at least 0.
    pub value: f64,
    /// The expected value, drawn as a mark; `None`: no mark.
    pub mark: Option<f64>,
    /// The text at the right of the bar.
    pub text: String,
    /// The index of the color, as of a curve.
    pub color: usize,
}

impl Bars {
    /// The figure, drawn.
    pub fn picture(&self) -> Picture {
        let widest = |names: &mut dyn Iterator<Item = &String>| {
            names.map(|name| name.chars().count()).max().unwrap_or(0) as f64 * LETTER[0]
        };
        let left = widest(&mut self.rows.iter().map(|row| &row.name)) + 2.0 * LETTER[0];
        let right = widest(&mut self.rows.iter().map(|row| &row.text)) + 3.0 * LETTER[0];
        let [top, below] = EDGES;
        let bottom = top + ROW[0] * self.rows.len() as f64;
        let titled = LETTER[0] * (self.title.chars().count() as f64 + 4.0);
        let width = (left + WIDTH + right).max(titled);
        let mut picture = Picture::new(width as u32, (bottom + below) as u32);
        let ends = self.rows.iter().flat_map(|row| [Some(row.value), row.mark]).flatten();
        let x = Scale::of(ends.chain([0.0]), false, [left, left + WIDTH], 0.0);
        picture.text([2.0 * LETTER[0], LETTER[1]], &self.title, Align::Left);
        for (tick, text) in x.ticks() {
            let at = x.at(tick);
            picture.line([at, top - ROW[1]], [at, bottom], 1.0, GREY);
            picture.text([at, bottom + LETTER[1] * 0.8], &text, Align::Middle);
        }
        for (index, row) in self.rows.iter().enumerate() {
            let (y, tall) = (top + ROW[0] * index as f64, ROW[0] - ROW[1]);
            let middle = y + tall / 2.0;
            picture.text([left - LETTER[0], middle], &row.name, Align::Right);
            let color = COLORS[row.color % COLORS.len()];
            // What is no number has no place.
            let place = |value: f64| Some(x.at(value)).filter(|at| at.is_finite());
            if let Some(end) = place(row.value) {
                picture.fill([left, y], [end - left, tall], color);
            }
            if let Some(at) = row.mark.and_then(place) {
                picture.line([at, y - MARK[0]], [at, y + tall + MARK[0]], MARK[1], BLACK);
            }
            picture.text([left + WIDTH + LETTER[0], middle], &row.text, Align::Left);
        }
        picture.line([left, top - ROW[1]], [left, bottom], 1.0, BLACK);
        let under = [left + WIDTH / 2.0, bottom + 2.2 * LETTER[1]];
        picture.text(under, &self.x, Align::Middle);
        picture
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Shape;

    #[test]
    fn bars_are_as_long_as_their_values_and_marks_where_they_are() {
        let bar = |value, mark| Bar {
            name: String::from("weights"),
            value,
            mark,
            text: String::from("2 MiB"),
            color: 1,
        };
        let bars = Bars {
            title: String::from("memory"),
            x: String::from("MiB"),
            rows: vec![bar(2.0, Some(4.0)), bar(1.0, None)],
        };
        let (mut widths, mut marks) = (Vec::new(), Vec::new());
        for shape in bars.picture().shapes {
            match shape {
                Shape::Box { at, size, .. } => widths.push((at[0], size[0])),
                Shape::Line { from, width, .. } if width == MARK[1] => marks.push(from[0]),
                _ => {}
            }
        }
        let left = widths[0].0;
        assert_eq!(widths, [(left, WIDTH / 2.0), (left, WIDTH / 4.0)]);
        assert_eq!(marks, [left + WIDTH]);
    }
}
