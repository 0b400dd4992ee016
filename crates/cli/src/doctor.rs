//! `annulus doctor`: what this machine offers, and what is missing.

use serde_json::json;

use crate::arguments::Doctor;
use crate::{Done, print};

pub(crate) fn run(arguments: &Doctor) -> Done {
    let mut lines = vec![("annulus".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    lines.extend(annulus_train::described_machine());
    let value = || lines.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let row = |(name, found): &(String, String)| format!("{name:<16} {found}");
    let text = || lines.iter().map(row).collect::<Vec<_>>().join("\n");
    print::either(arguments.json, value, text)?;
    Ok(0)
}
