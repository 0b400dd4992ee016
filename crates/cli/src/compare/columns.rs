//! A table with a column for each run, broken into blocks that fit a terminal's width.

use annulus_text::{TERMINAL_WIDTH, blocks};

/// The widest value in a column; wider ones get a line of their own.
const WIDEST: usize = 24;
/// Spaces between columns.
const GAP: usize = 2;

/// A table with a column for each run.
pub(crate) struct Columns {
    head: String,
    names: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

impl Columns {
    pub(crate) fn new(head: &str, names: impl Iterator<Item = String>) -> Columns {
        Columns { head: head.to_owned(), names: names.collect(), rows: Vec::new() }
    }

    /// A row with a value for each run.
    pub(crate) fn add(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        self.rows.push((name.to_owned(), values.into_iter().collect()));
    }

    /// The table as text: rows in columns; below them the rows with long values, a line for each value.
    pub(crate) fn text(&self) -> String {
        let is_narrow =
            |row: &&(String, Vec<String>)| row.1.iter().all(|cell| letters(cell) <= WIDEST);
        let (narrow, wide): (Vec<_>, Vec<_>) = self.rows.iter().partition(is_narrow);
        let names = narrow.iter().map(|row| letters(&row.0) + GAP);
        let label = names.chain([letters(&self.head)]).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = narrow.iter().map(|row| letters(&row.1[column]));
            GAP + cells.chain([letters(&self.names[column])]).max().unwrap_or(0)
        };
        let mut lines = Vec::new();
        for columns in blocks((0..self.names.len()).map(width), label, TERMINAL_WIDTH) {
            let line = |name: &str, cells: &[String]| {
                let cell = |column: usize| format!("{:>1$}", cells[column], width(column));
                format!("{name:<label$}{}", columns.clone().map(cell).collect::<String>())
            };
            lines.push(line(&self.head, &self.names));
            lines.extend(narrow.iter().map(|(name, cells)| line(&format!("  {name}"), cells)));
        }
        for (name, cells) in wide {
            lines.push(format!("  {name}"));
            let cells = self.names.iter().zip(cells);
            lines.extend(cells.map(|(run, cell)| format!("    {}  {cell}", run.trim())));
        }
        lines.join("\n")
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: u8) -> impl Iterator<Item = String> {
        (0..count).map(|index| char::from(b'A' + index).to_string())
    }

    #[test]
    fn many_columns_become_blocks_and_long_values_lines() {
        let mut table = Columns::new("what differs", names(16));
        table.add("seed", (0..16).map(|run| format!("{}", 100_000_000 + run)));
        table.add("data.path", (0..16).map(|run| format!("/a/long/way/to/a/folder/{run}.txt")));
        let text = table.text();
        assert!(text.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "{text}");
        assert_eq!(text.matches("what differs").count(), 3, "{text}");
        assert!(text.contains("    P  /a/long/way/to/a/folder/15.txt"), "{text}");
        for run in 0..16 {
            assert!(text.contains(&format!("  {}", 100_000_000 + run)), "{text}");
        }
    }

    #[test]
    fn few_columns_are_one_block() {
        let mut table = Columns::new("loss", names(2));
        table.add("step 1", ["5.5".to_owned(), "5.25".to_owned()]);
        assert_eq!(table.text(), "loss        A     B\n  step 1  5.5  5.25");
    }
}
