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
        match key.kind {
            Kind::Section(groups) => section(&path, groups, page),
            Kind::OneOf(one) => {
                let groups = [one.keys].into_iter().chain(one.instead.iter().copied());
                section(&path, &groups.collect::<Vec<_>>(), page);
            }
            Kind::Each(groups) => section(&format!("{path}.NAME"), groups, page),
            Kind::Listed(groups) => section(&format!("{path}[…]"), groups, page),
            _ => {}
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
