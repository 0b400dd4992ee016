//! Tables in text.

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

/// The width of a terminal, in columns.
const COLUMNS: usize = 80;

/// A table within 80 columns: columns without room at the right stand below, after the first column again.
pub fn stacked(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count() + 2).max().unwrap_or_default()
    };
    let mut blocks: Vec<Vec<usize>> = Vec::new();
    let mut taken = 0;
    for column in 1..columns {
        match blocks.last_mut() {
            Some(block) if taken + width(column) <= COLUMNS => block.push(column),
            _ => {
                blocks.push(vec![0, column]);
                taken = width(0) - 2;
            }
        }
        taken += width(column);
    }
    let block = |columns: &Vec<usize>| {
        let cells = |row: &Vec<String>| {
            columns.iter().filter_map(|column| row.get(*column).cloned()).collect()
        };
        aligned(&rows.iter().map(cells).collect::<Vec<_>>())
    };
    blocks.iter().map(block).collect::<Vec<_>>().join("\n")
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
        assert!(shown.lines().all(|line| line.len() <= COLUMNS), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.starts_with("a ")).count(), 2, "{shown}");
        assert!((0..6).all(|column| shown.contains(&format!("{column}").repeat(15))), "{shown}");
        let narrow = [vec![String::from("a"), String::from("b")]];
        assert_eq!(stacked(&narrow), aligned(&narrow));
    }
}
