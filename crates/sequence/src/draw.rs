//! Drawings of layouts and schedules as text of at most 80 columns.

mod layout;
mod schedule;
mod table;

use crate::Coverage;
pub use layout::{draw_layers, draw_sharded};
pub use schedule::{Detail, draw_schedule};
pub use table::{aligned, stacked};

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

/// The number of ranks in words.
fn ranks(world: usize) -> String {
    if world == 1 { "1 rank".to_owned() } else { format!("{world} ranks") }
}
