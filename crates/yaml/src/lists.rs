//! Values for other keys, by their dotted names: lists to choose from, and rows of values that belong together.
//!
//! What the values are, only the keys know that they are for: here they stay trees, with their places.

use crate::kind::Mismatch;
use crate::section::Scalar;
use crate::source::printable;
use crate::tree::{Entry, Node, Value};
use crate::values::Typed;
use crate::write::{list, quoted};

/// Keys by their dotted names (`data.tokens`), each with a list of at least one value; null takes the key out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lists(pub Vec<Entry>);

/// Rows, each of which has values for some keys by their dotted names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows(pub Vec<Vec<Entry>>);

impl Lists {
    pub(crate) const WANTED: &'static str =
        "a mapping of dotted keys to lists of values such as `{ data.tokens: [1k, 2k] }`";

    pub(crate) fn read(node: &Node) -> Result<Typed, Mismatch> {
        let Value::Mapping(entries) = &node.value else { return Err(wrong(Lists::WANTED, None)) };
        if entries.is_empty() {
            return Err(found(Lists::WANTED, node, String::from("an empty mapping")));
        }
        for Entry { key, value, .. } in entries {
            match &value.value {
                Value::Sequence(items) if !items.is_empty() => {
                    refuse_wrong(items.iter(), Lists::WANTED)?;
                }
                Value::Sequence(_) => {
                    return Err(found(Lists::WANTED, value, String::from("an empty list")));
                }
                Value::Mapping(below) => {
                    let first = below.first().map_or("KEY", |entry| entry.key.as_str());
                    let hint = format!(
                        "write `{}: […]`: keys stand here by their dotted names",
                        printable(&format!("{key}.{first}"))
                    );
                    return Err(Mismatch { hint: Some(hint), ..wrong(Lists::WANTED, Some(value)) });
                }
                _ => {
                    let line = printable(&format!("{key}: [{}]", text(value)));
                    let hint = format!("a list stands in brackets: `{line}`");
                    return Err(Mismatch { hint: Some(hint), ..wrong(Lists::WANTED, Some(value)) });
                }
            }
        }
        Ok(Typed::Lists(entries.clone()))
    }
}

impl Rows {
    pub(crate) const WANTED: &'static str = "a list of rows such as `[{ data.tokens: 1k, data.batch: 4 }]`, all of the same dotted keys";

    pub(crate) fn read(node: &Node) -> Result<Typed, Mismatch> {
        let Value::Sequence(items) = &node.value else { return Err(wrong(Rows::WANTED, None)) };
        let mut rows: Vec<Vec<Entry>> = Vec::new();
        for item in items {
            let Value::Mapping(row) = &item.value else {
                return Err(wrong(Rows::WANTED, Some(item)));
            };
            refuse_wrong(row.iter().map(|entry| &entry.value), Rows::WANTED)?;
            if row.is_empty() {
                return Err(found(Rows::WANTED, item, String::from("an empty row")));
            }
            if let Some((number, key)) = lacking(rows.first().unwrap_or(row), row, rows.len() + 1) {
                let at = &items[number - 1];
                let what = format!("row {number} without `{}`", printable(key));
                return Err(found(Rows::WANTED, at, what));
            }
            rows.push(row.clone());
        }
        if rows.is_empty() {
            return Err(found(Rows::WANTED, node, String::from("an empty list")));
        }
        Ok(Typed::Rows(rows))
    }
}

/// The number of the first or of this row, which is the `number`th, that lacks a key of the other one, and that key.
fn lacking<'a>(first: &'a [Entry], row: &'a [Entry], number: usize) -> Option<(usize, &'a str)> {
    let surplus = |of: &'a [Entry], other: &'a [Entry]| {
        let is_new = |entry: &&Entry| other.iter().all(|other| other.key != entry.key);
        of.iter().find(is_new).map(|entry| entry.key.as_str())
    };
    let of_row = surplus(first, row).map(|key| (number, key));
    of_row.or_else(|| surplus(row, first).map(|key| (1, key)))
}

/// What is found at `node`, in words, instead of what is wanted.
fn found(wanted: &str, node: &Node, found: String) -> Mismatch {
    Mismatch { item: Some((node.span, found)), ..wrong(wanted, None) }
}

fn wrong(wanted: &str, item: Option<&Node>) -> Mismatch {
    let item = item.map(|item| (item.span, item.value.found()));
    Mismatch { wanted: wanted.to_owned(), hint: None, item }
}

fn refuse_wrong<'a>(values: impl Iterator<Item = &'a Node>, wanted: &str) -> Result<(), Mismatch> {
    let mut values = values;
    let wrong_one = values.find(|value| matches!(value.value, Value::Wrong));
    wrong_one.map_or(Ok(()), |value| Err(wrong(wanted, Some(value))))
}

/// A value on one line, which reads back as the same.
pub fn text(node: &Node) -> String {
    match &node.value {
        Value::Nothing | Value::Wrong => String::from("null"),
        Value::Scalar { text, quoted: false } => text.clone(),
        Value::Scalar { text, quoted: true } => serde_json::Value::from(text.as_str()).to_string(),
        Value::Sequence(items) => list(items.iter().map(text)),
        Value::Mapping(entries) => in_braces(entries),
    }
}

fn in_braces(entries: &[Entry]) -> String {
    let line = |entry: &Entry| format!("{}: {}", quoted(&entry.key), text(&entry.value));
    format!("{{ {} }}", entries.iter().map(line).collect::<Vec<_>>().join(", "))
}

impl Scalar for Lists {
    fn from_typed(typed: &Typed) -> Option<Lists> {
        match typed {
            Typed::Lists(lists) => Some(Lists(lists.clone())),
            _ => None,
        }
    }

    fn text(&self) -> String {
        in_braces(&self.0)
    }
}

impl Scalar for Rows {
    fn from_typed(typed: &Typed) -> Option<Rows> {
        match typed {
            Typed::Rows(rows) => Some(Rows(rows.clone())),
            _ => None,
        }
    }

    fn text(&self) -> String {
        list(self.0.iter().map(|row| in_braces(row)))
    }
}
