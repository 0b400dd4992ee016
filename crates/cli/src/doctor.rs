//! `annulus doctor`: what this machine offers, and what is missing.

use std::path::Path;

use annulus_hub::{Options, room};
use annulus_plan::size;
use serde_json::json;

use crate::arguments::Doctor;
use crate::{Done, launch, print};

pub(crate) fn run(arguments: &Doctor) -> Done {
    let mut lines = vec![("annulus".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    lines.extend(annulus_train::described_machine());
    let more = [
        ("memory", memory()),
        ("disk", disk(Path::new("."))),
        ("MPI", launch::engine()),
        ("hub's cache", cache()),
    ];
    lines.extend(more.map(|(name, found)| (name.to_owned(), found)));
    let value = || lines.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let row = |(name, found): &(String, String)| {
        annulus_plan::wrapped(&format!("{name:<WIDTH$}{found}"), WIDTH)
    };
    let text = || lines.iter().map(row).collect::<Vec<_>>().join("\n");
    print::either(arguments.json, value, text)?;
    Ok(0)
}

/// How wide names are.
const WIDTH: usize = 14;
const UNKNOWN: &str = "unknown";

/// What this process may have.
fn memory() -> String {
    let there = annulus_machine::memory();
    let said = |limit: annulus_machine::Limit| format!("{} {}", limit.by, size(limit.bytes));
    there.map_or_else(|| UNKNOWN.to_owned(), said)
}

/// Where runs are written by default.
fn disk(folder: &Path) -> String {
    let free = room(folder).map_or_else(|| UNKNOWN.to_owned(), size);
    format!("{free} free in the current folder")
}

/// Where models of Hugging Face's hub are kept; nobody is asked whether the hub is there.
fn cache() -> String {
    match Options::from_environment() {
        Ok(options) => {
            let free = room(&options.cache).map_or_else(|| UNKNOWN.to_owned(), size);
            let offline =
                if options.offline { "; nothing is fetched: `HF_HUB_OFFLINE`" } else { "" };
            format!("{} ({free} free){offline}; set `HF_HOME` for another", options.cache.display())
        }
        Err(error) => error.to_string(),
    }
}
