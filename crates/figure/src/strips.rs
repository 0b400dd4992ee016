//! Rows of cells that are the darker the more of them is taken: who holds what.

use crate::Picture;
use crate::picture::{Align, BLACK, Color, GREY, LETTER};

/// The width of all cells together.
const WIDTH: f64 = 720.0;
/// The height of a row, and what of it stays free.
const ROW: [f64; 2] = [26.0, 6.0];
/// Above the rows, and below them.
const EDGES: [f64; 2] = [60.0, 60.0];
/// What is taken whole.
const FULL: Color = [0x00, 0x72, 0xb2];

/// A figure of rows of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Strips {
    /// The title, drawn above the rows.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// The labels of the left and the right end of the x axis.
    pub ends: [String; 2],
    /// The rows, from the top down.
    pub rows: Vec<StripRow>,
}

/// A row of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct StripRow {
    /// The row's label.
    pub name: String,
    /// The values of the cells, from 0 (nothing) to 1 (all), from left to right.
    pub cells: Vec<f64>,
    /// The text at the right of the row.
    pub note: String,
}

impl Strips {
    /// The figure, drawn.
    pub fn picture(&self) -> Picture {
        let widest = |names: &mut dyn Iterator<Item = &String>| {
            names.map(|name| name.chars().count()).max().unwrap_or(0) as f64 * LETTER[0]
        };
        let left = widest(&mut self.rows.iter().map(|row| &row.name)) + 2.0 * LETTER[0];
        let right = widest(&mut self.rows.iter().map(|row| &row.note)) + 3.0 * LETTER[0];
        let [top, bottom] = EDGES;
        let titled = LETTER[0] * (self.title.chars().count() as f64 + 2.0);
        let height = top + ROW[0] * self.rows.len() as f64 + bottom;
        let mut picture =
            Picture::new((left + WIDTH + right).max(left + titled) as u32, height as u32);
        picture.text([left, LETTER[1]], &self.title, Align::Left);
        for (index, StripRow { name, cells, note }) in self.rows.iter().enumerate() {
            let y = top + ROW[0] * index as f64;
            let (middle, tall) = (y + (ROW[0] - ROW[1]) / 2.0, ROW[0] - ROW[1]);
            picture.text([left - LETTER[0], middle], name, Align::Right);
            picture.fill([left, y], [WIDTH, tall], GREY);
            let width = WIDTH / cells.len().max(1) as f64;
            for (cell, share) in cells.iter().enumerate().filter(|(_, share)| **share > 0.0) {
                let color = std::array::from_fn(|part| mix(GREY[part], FULL[part], *share));
                picture.fill([left + width * cell as f64, y], [width, tall], color);
            }
            picture.text([left + WIDTH + LETTER[0], middle], note, Align::Left);
        }
        let below = height - bottom + LETTER[1];
        picture.line([left, below - LETTER[1]], [left + WIDTH, below - LETTER[1]], 1.0, BLACK);
        picture.text([left, below], &self.ends[0], Align::Left);
        picture.text([left + WIDTH, below], &self.ends[1], Align::Right);
        picture.text([left + WIDTH / 2.0, below + LETTER[1]], &self.x, Align::Middle);
        picture
    }
}

fn mix(none: u8, all: u8, share: f64) -> u8 {
    let [none, all] = [none, all].map(f64::from);
    (none + (all - none) * share.clamp(0.0, 1.0)).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Shape;

    #[test]
    fn a_cell_is_as_dark_as_it_is_taken() {
        let rows = vec![StripRow {
            name: String::from("rank 0"),
            cells: vec![0.0, 0.5, 1.0],
            note: String::from("x 1.00"),
        }];
        let ends = [String::from("0"), String::from("2")];
        let strips = Strips { title: String::from("who"), x: String::from("position"), ends, rows };
        let colors = strips.picture().shapes.into_iter().filter_map(|shape| match shape {
            Shape::Box { color, .. } => Some(color),
            _ => None,
        });
        let half = std::array::from_fn(|part| mix(GREY[part], FULL[part], 0.5));
        assert_eq!(colors.collect::<Vec<_>>(), [GREY, half, FULL]);
    }
}
