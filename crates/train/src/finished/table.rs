//! A run's metrics as one table, for programs that cannot read lines of JSON.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value as Json;

use crate::Result;
use crate::finished::logged::is_of_run;
use crate::folder::lines::{Line, checked_lines, most};

/// `metrics.jsonl` as comma-separated values: a line per logged step, a column per tag (of values by rank, the largest); an empty cell
/// where a step has no such value.
///
/// # Errors
/// A folder that is no run's, or cannot be read, and the first damaged line; the last one may be torn.
pub fn metrics_table(run: &Path) -> Result<String> {
    is_of_run(run)?;
    let (lines, _) = checked_lines(run)?;
    let tags: BTreeSet<&String> = lines.iter().flat_map(|line| line.values.keys()).collect();
    let mut table = String::from("step");
    for tag in &tags {
        table.push(',');
        table.push_str(tag);
    }
    table.push('\n');
    for line in &lines {
        let cells = tags.iter().map(|tag| cell(line, tag));
        table.push_str(&line.step.to_string());
        cells.for_each(|cell| table.push_str(&cell));
        table.push('\n');
    }
    Ok(table)
}

/// A comma and the value, with all digits that were written.
fn cell(line: &Line, tag: &str) -> String {
    match line.values.get(tag) {
        Some(Json::Number(number)) => format!(",{number}"),
        Some(Json::Array(ranks)) => {
            let most = Some(most(&line.values[tag]));
            let written = ranks.iter().find(|rank| rank.as_f64() == most);
            written.map_or_else(|| ",".to_owned(), |written| format!(",{written}"))
        }
        _ => ",".to_owned(),
    }
}
