//! `annulus doctor`: what this machine offers, and what is missing.

use serde_json::{Map, Value, json};

use crate::arguments::Doctor;
use crate::{Done, print};

pub(crate) fn run(arguments: &Doctor) -> Done {
    let mut lines = vec![("annulus".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    lines.extend(annulus_train::described_machine());
    if arguments.json {
        let all: Map<String, Value> =
            lines.into_iter().map(|(key, value)| (key, json!(value))).collect();
        print::line(&Value::Object(all).to_string())?;
    } else {
        for (what, found) in &lines {
            print::line(&format!("{what:<16} {found}"))?;
        }
    }
    Ok(0)
}
