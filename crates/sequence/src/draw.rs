//! Who holds what and what moves, as text of at most 80 columns.

mod layout;
mod schedule;
mod table;

use crate::Coverage;
pub use layout::{draw_layers, draw_layout, draw_sharded};
pub use schedule::{Detail, draw_schedule};
pub use table::{aligned, stacked};

/// How a tile is drawn.
fn glyph(coverage: Coverage) -> char {
    match coverage {
        Coverage::Empty => '·',
        Coverage::Partial => '◪',
        Coverage::Full => '■',
    }
}

/// Cells side by side, each at least as wide as `width`, without blanks at the end.
fn row(head: &str, cells: impl IntoIterator<Item = String>, width: usize) -> String {
    let cells = cells.into_iter().map(|cell| format!("{cell:<width$}"));
    let line: Vec<String> = [format!("{head:<HEAD$}")].into_iter().chain(cells).collect();
    line.concat().trim_end().to_owned()
}

/// How wide the first column is.
const HEAD: usize = 9;

/// So many ranks.
fn ranks(world: usize) -> String {
    if world == 1 { "1 rank".to_owned() } else { format!("{world} ranks") }
}
