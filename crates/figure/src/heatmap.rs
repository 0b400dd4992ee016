//! A table of numbers from 0 to 1 as colors.

use crate::Picture;
use crate::picture::{Align, BLACK, Color, GREY, LETTER, WHITE};

/// Around the cells: left, top, right, bottom.
const EDGES: [f64; 4] = [110.0, 70.0, 30.0, 60.0];
/// The least width and height of a cell.
const CELL: [f64; 2] = [64.0, 34.0];
/// The least width of the cells together: room for a title.
const WIDTH: f64 = 640.0;
/// From 0 to 1: dark, blue, green, yellow (points of viridis, by van der Walt and Smith).
const COLORS: [Color; 5] = [
    [0x44, 0x01, 0x54],
    [0x3b, 0x52, 0x8b],
    [0x21, 0x91, 0x8c],
    [0x5e, 0xc9, 0x62],
    [0xfd, 0xe7, 0x25],
];

/// A figure of a table of values from 0 to 1, each a colored cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Heatmap {
    /// The title, drawn above the cells.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// The label of the y axis.
    pub y: String,
    /// The names of the columns, from left to right.
    pub columns: Vec<String>,
    /// The names of the rows, from the top down.
    pub rows: Vec<String>,
    /// Values from 0 to 1 by row and column; `None`: not known.
    pub cells: Vec<Vec<Option<f64>>>,
}

impl Heatmap {
    /// The figure, drawn, with the value of every cell in hundredths.
    pub fn picture(&self) -> Picture {
        let [left, top, right, bottom] = EDGES;
        let across = self.columns.len().max(1) as f64;
        let (cell, down) = ([CELL[0].max(WIDTH / across), CELL[1]], self.rows.len() as f64);
        let (width, height) = (left + across * cell[0] + right, top + down * cell[1] + bottom);
        let mut picture = Picture::new(width as u32, height as u32);
        picture.text([width / 2.0, LETTER[1]], &self.title, Align::Middle);
        picture.text([left - LETTER[0], top - LETTER[1]], &self.y, Align::Right);
        let below = [left + across * cell[0] / 2.0, height - LETTER[1]];
        picture.text(below, &self.x, Align::Middle);
        for (row, (name, cells)) in self.rows.iter().zip(&self.cells).enumerate() {
            let y = top + row as f64 * cell[1];
            picture.text([left - LETTER[0], y + cell[1] / 2.0], name, Align::Right);
            for (column, value) in cells.iter().enumerate() {
                let x = left + column as f64 * cell[0];
                // What is no number is not known.
                let value = value.filter(|value| value.is_finite());
                let color = value.map_or(GREY, color);
                picture.fill([x, y], [cell[0] - 1.0, cell[1] - 1.0], color);
                if let Some(value) = value {
                    let text = format!("{:.0}", 100.0 * value);
                    let middle = [x + cell[0] / 2.0, y + cell[1] / 2.0];
                    let letters = if value < 0.5 { WHITE } else { BLACK };
                    picture.colored(middle, &text, Align::Middle, letters);
                }
            }
        }
        for (column, name) in self.columns.iter().enumerate() {
            let x = left + (column as f64 + 0.5) * cell[0];
            picture.text([x, top + down * cell[1] + LETTER[1] * 0.8], name, Align::Middle);
        }
        picture
    }
}

/// Between the two colors that are nearest.
fn color(value: f64) -> Color {
    let steps = (COLORS.len() - 1) as f64;
    let at = value.clamp(0.0, 1.0) * steps;
    let first = (at as usize).min(COLORS.len() - 2);
    let share = at - first as f64;
    std::array::from_fn(|part| {
        let [from, to] = [COLORS[first][part], COLORS[first + 1][part]].map(f64::from);
        (from + (to - from) * share).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_go_from_one_end_to_the_other() {
        assert_eq!((color(0.0), color(1.0)), (COLORS[0], COLORS[4]));
        assert_eq!(color(0.5), COLORS[2]);
        let brightness = |value| color(value).map(u32::from).iter().sum::<u32>();
        assert!((0..10).all(|tenth| {
            brightness(f64::from(tenth) / 10.0) < brightness(f64::from(tenth + 1) / 10.0)
        }));
    }
}
