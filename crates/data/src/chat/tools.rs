//! What a conversation says of tools: those that there are, and calls of them.

use serde_json::Value as Json;

use super::{json, kind};
use crate::files::described;

/// The record's `tools`, a list of objects or null. Many data sets have the list as a text, which a template would take
/// apart letter by letter.
pub(super) fn of(record: &Json) -> Result<Json, String> {
    let tools = match &record["tools"] {
        Json::String(text) if text.trim().is_empty() => Json::Null,
        Json::String(text) => {
            json::exact(text)?;
            serde_json::from_str(text).map_err(|error| {
                let why = described(&error).replacen("the line", "it", 1);
                format!("`tools` is a text that is not JSON: {why}")
            })?
        }
        tools => tools.clone(),
    };
    check(&tools).map_err(|found| format!("`tools` is {found}, expected a list of objects"))?;
    Ok(tools)
}

/// Whether a message calls tools: columns of parquet files have null, or an empty list, where it calls none. Else what is
/// there instead of calls.
pub(super) fn calls(message: &Json) -> Result<bool, &'static str> {
    let calls = &message["tool_calls"];
    check(calls)?;
    Ok(calls.as_array().is_some_and(|calls| !calls.is_empty()))
}

/// Holds a value to a list of objects, or null; else what it is.
fn check(value: &Json) -> Result<(), &'static str> {
    match value {
        Json::Null => Ok(()),
        Json::Array(items) if items.iter().all(Json::is_object) => Ok(()),
        Json::Array(_) => Err("a list of something else"),
        other => Err(kind(other)),
    }
}
