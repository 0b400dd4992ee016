//! A run's metrics as one table, for programs that cannot read lines of JSON.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::Result;
use crate::finished::logged::is_of_run;
use crate::folder::line::{Line, LoggedValue};
use crate::folder::lines::checked_lines;

/// `metrics.jsonl` as comma-separated values (RFC 4180): a line per logged step, a column per tag (of values by rank, the largest); an empty cell
/// where a step has no such value.
///
/// # Errors
/// A folder that is no run's, or cannot be read, and the first damaged line; the last one may be torn.
pub fn metrics_table(run: &Path) -> Result<String> {
    is_of_run(run)?;
    let (lines, _) = checked_lines(run)?;
    let tags: BTreeSet<&Arc<str>> = lines.iter().flat_map(Line::tags).collect();
    let mut table = String::from("step");
    for tag in &tags {
        table.push(',');
        table.push_str(&quoted(tag));
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

/// A name of a column: in quotes where it would else be several, as sources are named after their files.
fn quoted(tag: &str) -> Cow<'_, str> {
    if tag.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", tag.replace('"', "\"\"")).into()
    } else {
        tag.into()
    }
}

/// A comma and the value, with all its digits.
fn cell(line: &Line, tag: &str) -> String {
    let value = line.get(tag).map(LoggedValue::most).filter(|value| value.is_finite());
    value.map_or_else(|| ",".to_owned(), |value| format!(",{value}"))
}
