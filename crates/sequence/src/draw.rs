//! Drawings of layouts and schedules as text that fits a terminal.

mod layout;
mod schedule;

use crate::Coverage;
pub use layout::{draw_layers, draw_sharded};
pub use schedule::{Detail, draw_schedule};

/// The character of a tile.
fn glyph(coverage: Coverage) -> char {
    match coverage {
        Coverage::Empty => '·',
        Coverage::Partial => '◪',
        Coverage::Full => '■',
    }
}

/// A row of cells, each at least `width` wide, without trailing blanks.
fn row(head: &str, cells: impl IntoIterator<Item = String>, width: usize) -> String {
    let cells = cells.into_iter().map(|cell| format!("{cell:<width$}"));
    let line: Vec<String> = [format!("{head:<HEAD$}")].into_iter().chain(cells).collect();
    line.concat().trim_end().to_owned()
}

/// The width of the first column.
const HEAD: usize = 9;
