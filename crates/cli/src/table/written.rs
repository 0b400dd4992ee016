//! Formats a table of runs as text, Markdown and CSV.

use std::fmt::Write as _;

use annulus_evaluation::{OverSeeds, Row, Table, Test};
use annulus_text::{TERMINAL_WIDTH, blocks, wrapped};

use super::cells::{Cells, notes};

/// Spaces between columns.
const GAP: usize = 2;

/// The table in columns, with notes below. A table wider than a terminal is broken into blocks, each with the keys.
pub(super) fn text(table: &Table) -> String {
    let cells = Cells::of(table, false);
    let width = |column: usize| {
        let all = cells.rows.iter().map(|row| &row[column]).chain([&cells.heads[column]]);
        GAP + all.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let labels: usize = (0..cells.keys).map(width).sum();
    let mut lines = Vec::new();
    let others = (cells.keys..cells.heads.len()).map(width);
    // No gap follows the last column.
    for block in blocks(others, labels, TERMINAL_WIDTH + GAP) {
        let line = |row: &Vec<String>| {
            let shown = (0..cells.keys).chain(block.clone().map(|other| cells.keys + other));
            let cell = |column: usize| format!("{:<1$}", row[column], width(column));
            shown.map(cell).collect::<String>().trim_end().to_owned()
        };
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(line(&cells.heads));
        lines.extend(cells.rows.iter().map(line));
    }
    lines.extend(Some(String::new()).filter(|_| !notes(table).is_empty()));
    lines.extend(notes(table).iter().map(|note| wrapped(note, 2)));
    lines.join("\n")
}

/// The table as Markdown, with its notes.
pub(super) fn markdown(table: &Table) -> String {
    let cells = Cells::of(table, true);
    let line = |row: &[String]| {
        let row: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |", row.join(" | "))
    };
    let keys = cells.heads[..cells.keys].iter().map(|key| format!("`{key}`"));
    let heads: Vec<String> = keys.chain(cells.heads[cells.keys..].iter().cloned()).collect();
    let mut lines = vec![line(&heads), line(&vec!["---".to_owned(); heads.len()])];
    lines.extend(cells.rows.iter().map(|row| line(row)));
    let notes = notes(table);
    if !notes.is_empty() {
        lines.push(String::new());
        lines.push(notes.iter().map(|note| format!("- {note}")).collect::<Vec<_>>().join("\n"));
    }
    lines.join("\n")
}

/// The table as comma-separated values, with all digits.
pub(super) fn csv(table: &Table) -> String {
    let times = table.rows.iter().any(|row| row.tokens_per_second.is_some());
    let mut heads: Vec<String> = table.keys.iter().map(|key| field(key)).collect();
    heads.extend(["runs", "seeds"].map(str::to_owned));
    let tags = ["train_loss", "evaluate_loss", "tokens_per_second"];
    for tag in &tags[..if times { 3 } else { 2 }] {
        heads.extend([format!("{tag}_mean"), format!("{tag}_half_interval")]);
    }
    heads.extend(["difference_to_best", "p", "beyond_seeds", "test"].map(str::to_owned));
    let mut text = heads.join(",");
    for row in &table.rows {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{}", values(row, times).join(","));
    }
    text
}

fn values(row: &Row, times: bool) -> Vec<String> {
    let mut cells: Vec<String> = row.values.iter().map(|value| field(value)).collect();
    cells.extend([row.runs.to_string(), row.seeds.len().to_string()]);
    let all = [&row.train_loss, &row.evaluate_loss, &row.tokens_per_second];
    for found in &all[..if times { 3 } else { 2 }] {
        let found: Option<&OverSeeds> = found.as_ref();
        cells.push(found.map(|found| found.mean.to_string()).unwrap_or_default());
        cells.push(
            found.and_then(|found| found.half).map(|half| half.to_string()).unwrap_or_default(),
        );
    }
    let against = row.against_best;
    cells.push(against.map(|against| against.difference.to_string()).unwrap_or_default());
    cells.push(against.and_then(|against| against.p).map(|p| p.to_string()).unwrap_or_default());
    cells.push(
        against.and_then(|against| against.is_larger).map(|is| is.to_string()).unwrap_or_default(),
    );
    let name = |test: Test| match test {
        Test::Paired => "paired".to_owned(),
        Test::Welch => "welch".to_owned(),
    };
    // Of too few seeds nothing is tested.
    let tested = against.filter(|against| against.p.is_some());
    cells.push(tested.map(|against| name(against.test)).unwrap_or_default());
    cells
}

/// A field of CSV, quoted where it has to be.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use annulus_evaluation::ComparisonToBest;

    use super::*;

    fn row(values: [&str; 2], losses: &[f64], against_best: Option<ComparisonToBest>) -> Row {
        Row {
            values: values.map(str::to_owned).into(),
            runs: 2,
            seeds: (1..).zip(losses).map(|(seed, _)| seed).collect(),
            train_loss: OverSeeds::of(losses),
            evaluate_loss: None,
            tokens_per_second: OverSeeds::of(&[1000.0; 2]),
            best: Some(0),
            against_best,
        }
    }

    fn table() -> Table {
        let by = |difference, p: Option<f64>| ComparisonToBest {
            difference,
            test: Test::Paired,
            p,
            is_rounding: false,
            is_larger: p.map(|p| p < 0.05),
        };
        Table {
            keys: ["data.tokens", "extend.tokens"].map(str::to_owned).into(),
            compared_by: Some("train/loss"),
            best: Some(0),
            rows: vec![
                row(["1k", "a, b"], &[2.0, 2.0], None),
                row(["2k", "a|b"], &[3.0, 3.5], Some(by(1.25, Some(1e-5)))),
                row(["4k", "c"], &[2.000_01], Some(by(0.000_01, None))),
            ],
        }
    }

    #[test]
    fn a_table_fits_a_terminal_and_says_what_it_means() {
        let text = text(&table());
        assert!(text.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let head = "data.tokens  extend.tokens  seeds   train loss       minus best  beyond seeds";
        assert_eq!(lines[0], head);
        assert_eq!(lines[1], "1k           a, b           2       2.0000 ± 0.0000  best");
        let second =
            "2k           a|b            2       3.2500 ± 3.1766  +1.2500     yes, p < 0.001";
        assert_eq!(lines[2], second);
        assert_eq!(lines[3], "4k           c              1 of 2  2.0000           +1e-5       -");
        assert_eq!(lines[5], "data.tokens  extend.tokens  tokens/s");
        assert_eq!(lines[7], "2k           a|b            1000 ± 0");
        assert!(
            text.contains("minus best: mean train/loss less that of the best row (1k, a, b)"),
            "{text}"
        );
        assert!(text.contains("two-sided p < 0.05,\n  paired by seed"), "{text}");
    }

    #[test]
    fn a_rounding_error_is_called_one() {
        let mut table = table();
        assert!(!text(&table).contains("rounding"));
        for against in table.rows.iter_mut().filter_map(|row| row.against_best.as_mut()) {
            (against.is_rounding, against.is_larger) = (true, against.is_larger.map(|_| false));
        }
        let text = text(&table);
        let line = |word: &str| text.lines().find(|line| line.starts_with(word)).unwrap();
        assert!(line("2k").ends_with("  no, rounding"), "{text}");
        // Of a single seed nothing is known.
        assert!(line("4k").ends_with("  -"), "{text}");
        assert!(text.contains("no, rounding: the means are equal to 1e-6"), "{text}");
    }

    #[test]
    fn rows_of_other_texts_are_compared_with_none() {
        let mut table = table();
        table.best = None;
        for row in &mut table.rows[1..] {
            (row.best, row.against_best) = (Some(1), None);
        }
        table.rows[0].best = None;
        let text = text(&table);
        let line = |word: &str| text.lines().find(|line| line.starts_with(word)).unwrap();
        assert!(line("1k").ends_with("  other text  -"), "{text}");
        assert!(line("2k").ends_with("  best"), "{text}");
        assert!(text.contains("that of the best row with the same held-out"), "{text}");
        assert!(text.contains("\nother text: no other row was evaluated"), "{text}");
        table.rows[1].best = None;
        table.rows.pop();
        let text = super::text(&table);
        assert!(!text.contains("minus best:") && !text.contains("beyond seeds:"), "{text}");
    }

    #[test]
    fn programs_and_pages_get_every_field() {
        let csv = csv(&table());
        let rows: Vec<&str> = csv.lines().collect();
        let columns = rows[0].split(',').count();
        assert_eq!(columns, 14);
        assert_eq!(rows[1], "1k,\"a, b\",2,2,2,0,,,1000,0,,,,");
        assert_eq!(rows[3], "4k,c,2,1,2.00001,,,,1000,0,0.00001,,,");
        let markdown = markdown(&table());
        assert!(markdown.starts_with("| `data.tokens` | `extend.tokens` | seeds |"), "{markdown}");
        assert!(markdown.contains("| 2k | a\\|b | 2 |"), "{markdown}");
    }
}
