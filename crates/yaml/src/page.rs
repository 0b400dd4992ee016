//! The page of keys: the table of keys as Markdown, for readers.

use crate::keys::{Absent, Key, Kind, join};

/// Sections of a file of these keys as Markdown: a table each, with every key, what it takes, its
/// default and its sentence.
pub fn page(keys: &[&[Key]]) -> String {
    let mut page = String::new();
    section("", keys, &mut page);
    page.trim().to_owned()
}

/// A section's own keys as a table, then the sections below it.
fn section(path: &str, groups: &[&[Key]], page: &mut String) {
    let keys = || groups.iter().copied().flatten();
    if !path.is_empty() {
        page.extend(["\n## `", path, "`\n"]);
    }
    page.push_str("\n| key | takes | default | meaning |\n| --- | --- | --- | --- |\n");
    page.extend(keys().map(row));
    for key in keys() {
        let path = join(path, key.name);
        let path = match key.kind {
            Kind::Each(_) => format!("{path}.NAME"),
            Kind::Listed(_) => format!("{path}[…]"),
            _ => path,
        };
        let groups = key.kind.below();
        if !groups.is_empty() {
            section(&path, &groups, page);
        }
    }
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Absent::Required => String::from("required"),
        Absent::RequiredWithout(other) => format!("required without `{other}`"),
        Absent::Is(text) => format!("`{text}`"),
        Absent::Means(meaning) => meaning.to_owned(),
    };
    let cells = [format!("`{}`", key.name), key.kind.wanted(), default, key.about.to_owned()];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}
