//! Conversations as other programs write them, made into `messages`: ShareGPT's `conversations`, and Alpaca's
//! `instruction`, `input` and `output`.

use serde_json::{Map, Value as Json, json};

/// Fields that records of each shape have; the first one says which it is, and the first that is there counts.
pub(crate) const SHAPES: [&[&str]; 3] =
    [&["messages"], &["conversations", "system"], &["instruction", "input", "output", "system"]];

/// Who speaks in ShareGPT's lines, and the role that it is.
const SPEAKERS: [(&str, &str); 8] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("assistant", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
];

/// The record with `messages`, whatever shape it had; else what is wrong with it.
pub(super) fn with_messages(mut record: Json) -> Result<Json, String> {
    let Some(fields) = record.as_object_mut().filter(|fields| !fields.contains_key("messages"))
    else {
        return Ok(record);
    };
    let messages = if let Some(turns) = fields.remove("conversations") {
        Some(of_turns(&turns, system(fields)?)?)
    } else if fields.contains_key("instruction") {
        Some(of_instruction(fields)?)
    } else {
        None
    };
    if let Some(messages) = messages {
        fields.insert("messages".to_owned(), messages);
    }
    Ok(record)
}

/// `[{"from": "human", "value": …}, …]`
fn of_turns(turns: &Json, system: Option<Json>) -> Result<Json, String> {
    let turns = turns.as_array().ok_or("`conversations` is no list of turns")?;
    let message = |(index, turn): (usize, &Json)| {
        let number = index + 1;
        let from = turn["from"].as_str().ok_or(format!("turn {number} has no `from`"))?;
        let role = SPEAKERS.iter().find(|(speaker, _)| *speaker == from);
        let (_, role) = role.ok_or_else(|| {
            let known = SPEAKERS.map(|(speaker, _)| format!("`{speaker}`")).join(", ");
            format!("turn {number} is from `{from}`, wanted one of {known}")
        })?;
        let value = turn["value"].as_str().ok_or(format!("turn {number} has no `value`"))?;
        let mut message = json!({ "role": role, "content": value });
        if let Some(weight) = turn.get("weight") {
            message["weight"] = weight.clone();
        }
        Ok(message)
    };
    let messages = turns.iter().enumerate().map(message).collect::<Result<Vec<_>, String>>()?;
    let speaks_first = messages.first().is_some_and(|first| first["role"] == "system");
    Ok(system.filter(|_| !speaks_first).into_iter().chain(messages).collect())
}

/// The message of the field `system`, where there is one.
fn system(fields: &Map<String, Json>) -> Result<Option<Json>, String> {
    let system = text(fields, "system")?.filter(|system| !system.is_empty());
    Ok(system.map(|system| json!({ "role": "system", "content": system })))
}

fn text<'a>(fields: &'a Map<String, Json>, name: &str) -> Result<Option<&'a str>, String> {
    match fields.get(name) {
        Some(Json::String(text)) => Ok(Some(text)),
        None | Some(Json::Null) => Ok(None),
        Some(_) => Err(format!("`{name}` is no text")),
    }
}

/// A question of `instruction`, and of `input` below it where it has one; the answer is `output`.
fn of_instruction(fields: &Map<String, Json>) -> Result<Json, String> {
    let text = |name: &str| text(fields, name);
    let missing = |name: &str| format!("missing field `{name}`");
    let instruction = text("instruction")?.ok_or_else(|| missing("instruction"))?;
    let output = text("output")?.ok_or_else(|| missing("output"))?;
    let question = match text("input")?.filter(|input| !input.is_empty()) {
        Some(input) => format!("{instruction}\n\n{input}"),
        None => instruction.to_owned(),
    };
    let rest = [
        json!({ "role": "user", "content": question }),
        json!({ "role": "assistant", "content": output }),
    ];
    Ok(system(fields)?.into_iter().chain(rest).collect())
}
