//! Tables and long lines as a terminal has room for them.

use std::ops::Range;

/// The width of a terminal, in columns.
pub const TERMINAL_WIDTH: usize = 80;
/// Blanks between columns.
const GAP: usize = 2;

/// Rows of text in columns: the first left-aligned, the others right-aligned.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
        });
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Which columns of a table stand side by side within `room` characters, block by block, where every block repeats titles of `titles`
/// characters before them: columns of `widths`, gaps included. A block has at least one column.
pub fn blocks(
    widths: impl IntoIterator<Item = usize>,
    titles: usize,
    room: usize,
) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    let mut taken = titles;
    for (column, width) in widths.into_iter().enumerate() {
        match blocks.last_mut() {
            Some(block) if taken + width <= room => block.end += 1,
            _ => {
                blocks.push(column..column + 1);
                taken = titles;
            }
        }
        taken += width;
    }
    blocks
}

/// A table that fits a terminal: columns without room at the right stand below, after the first column again.
pub fn stacked(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| GAP + cell.chars().count()).max().unwrap_or_default()
    };
    // No gap follows the last column.
    let blocks = blocks((1..columns).map(width), width(0), TERMINAL_WIDTH + GAP);
    let block = |others: &Range<usize>| {
        let shown = || std::iter::once(0).chain(others.clone().map(|other| other + 1));
        let cells = |row: &Vec<String>| {
            shown().filter_map(|column| row.get(column).cloned()).collect::<Vec<_>>()
        };
        aligned(&rows.iter().map(cells).collect::<Vec<_>>())
    };
    blocks.iter().map(block).collect::<Vec<_>>().join("\n")
}

/// `text` with every line no wider than a terminal: longer lines are wrapped, and the rest indented by `indent` blanks.
pub fn wrapped(text: &str, indent: usize) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| wrapped_line(line, indent)).collect();
    lines.join("\n")
}

fn wrapped_line(line: &str, indent: usize) -> String {
    let (mut done, mut rest) = (String::new(), line.to_owned());
    loop {
        let end = rest.char_indices().nth(TERMINAL_WIDTH).map(|(end, next)| end + next.len_utf8());
        let last = |end: usize| rest[..end].rfind(' ').filter(|at| *at > indent);
        let Some(at) = end.and_then(last) else { return done + &rest };
        done.push_str(rest[..at].trim_end());
        done.push('\n');
        rest = " ".repeat(indent) + rest[at..].trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_have_no_room_stand_below() {
        let row = |first: &str| {
            let cells = (0..6).map(|column| format!("{column}").repeat(15));
            std::iter::once(first.to_owned()).chain(cells).collect::<Vec<_>>()
        };
        let shown = stacked(&[row("head"), row("a")]);
        assert!(shown.lines().all(|line| line.len() <= TERMINAL_WIDTH), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.starts_with("a ")).count(), 2, "{shown}");
        assert!((0..6).all(|column| shown.contains(&format!("{column}").repeat(15))), "{shown}");
        let narrow = [vec![String::from("a"), String::from("b")]];
        assert_eq!(stacked(&narrow), aligned(&narrow));
    }

    #[test]
    fn long_lines_go_on_below() {
        let text = format!("short\nlong    {}", "word ".repeat(30).trim_end());
        let shown = wrapped(&text, 8);
        assert!(shown.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "{shown}");
        assert_eq!(shown.split_whitespace().count(), 32);
        assert_eq!(shown.lines().filter(|line| line.starts_with("        word")).count(), 2);
        let letters = format!("{} {}", "é".repeat(79), "数é ".repeat(60));
        let shown = wrapped(&letters, 0);
        assert!(shown.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "{shown}");
        let endless = "x".repeat(100);
        assert_eq!(wrapped(&endless, 8), endless, "a word is not cut");
    }
}
