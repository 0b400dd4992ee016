//! Conversations as other programs write them, made into `messages`:
//!
//! - ShareGPT's `conversations`: turns with `from` and `value`, or with `role` and `content`; a `function_call` is a message of
//!   the assistant's that calls tools;
//! - Alpaca's `instruction`, `input` and `output`, behind the pairs of a `history`;
//! - `prompt` and `completion`: a question and its answer, or two lists of messages, of which the second is learned.

use serde_json::{Map, Value as Json, json};

use super::learned::FIELDS;
use super::{ASSISTANT, json as numbers};

/// Fields that records of each shape have; the first one says which it is, and the first that is there counts.
pub(crate) const SHAPES: [&[&str]; 4] = [
    &["messages"],
    &["conversations", "system"],
    &["instruction", "input", "output", "system", "history"],
    &["prompt", "completion"],
];

/// Who calls tools in ShareGPT's lines.
const CALLER: &str = "function_call";

/// Who speaks in ShareGPT's lines, and the role that it is.
const SPEAKERS: [(&str, &str); 9] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("assistant", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
    (CALLER, ASSISTANT),
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
    } else if let Some(prompt) = fields.remove("prompt") {
        Some(of_prompt(prompt, fields.remove("completion"))?)
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
    let turns = turns.as_array().ok_or("`conversations` is not a list of turns")?;
    let messages = turns.iter().enumerate().map(|(index, turn)| of_turn(index + 1, turn));
    let messages = messages.collect::<Result<Vec<_>, String>>()?;
    let speaks_first = messages.first().is_some_and(|first| first["role"] == "system");
    Ok(system.filter(|_| !speaks_first).into_iter().chain(messages).collect())
}

/// The message of a turn, the `number`-th.
fn of_turn(number: usize, turn: &Json) -> Result<Json, String> {
    let role_of = |name: &str| SPEAKERS.iter().find(|(speaker, _)| *speaker == name);
    if let (Json::Null, Json::String(role)) = (&turn["from"], &turn["role"]) {
        // A message already.
        let mut message = turn.clone();
        if let Some((_, role)) = role_of(role).filter(|(speaker, _)| *speaker != CALLER) {
            message["role"] = json!(role);
        }
        return Ok(message);
    }
    let from = turn["from"].as_str().ok_or(format!("turn {number} has no `from`"))?;
    let (_, role) = role_of(from).ok_or_else(|| {
        let known = SPEAKERS.map(|(speaker, _)| format!("`{speaker}`")).join(", ");
        format!("turn {number} is from `{from}`, expected one of {known}")
    })?;
    let value = turn["value"].as_str().ok_or(format!("turn {number} has no `value`"))?;
    let mut message = json!({ "role": role, "content": value });
    if from == CALLER {
        message["content"] = json!("");
        message["tool_calls"] = calls(number, value)?;
    }
    for field in FIELDS {
        if let Some(said) = turn.get(field) {
            message[field] = said.clone();
        }
    }
    Ok(message)
}

/// The calls in a turn: `{"name": …, "arguments": …}` as a text, or a list of such.
fn calls(number: usize, value: &str) -> Result<Json, String> {
    numbers::exact(value)?;
    let called = match serde_json::from_str(value) {
        Ok(Json::Array(calls)) => calls,
        Ok(call) => vec![call],
        Err(_) => Vec::new(),
    };
    let call = |call: &Json| {
        let name = call["name"].as_str()?;
        let arguments = call.get("arguments").cloned().unwrap_or_else(|| json!({}));
        Some(json!({ "type": "function", "function": { "name": name, "arguments": arguments } }))
    };
    let calls: Option<Vec<_>> = called.iter().map(call).collect();
    let calls = calls.filter(|calls| !calls.is_empty());
    calls.map(Json::Array).ok_or_else(|| {
        format!(
            "turn {number} is from `{CALLER}`, and its `value` is neither `{{\"name\": …, \"arguments\": …}}` nor a list of such"
        )
    })
}

/// A question and its answer, or messages before and behind: what is before is not learned.
fn of_prompt(prompt: Json, completion: Option<Json>) -> Result<Json, String> {
    match (prompt, completion.unwrap_or_default()) {
        (Json::String(prompt), Json::String(completion)) => Ok(pair(&prompt, &completion).into()),
        (Json::Array(mut messages), Json::Array(completion)) => {
            for message in messages.iter_mut().filter_map(Json::as_object_mut) {
                if message.get("role").is_some_and(|role| role == ASSISTANT) {
                    message.insert("train".to_owned(), json!(false));
                }
            }
            messages.extend(completion);
            Ok(Json::Array(messages))
        }
        (_, Json::Null) => Err("missing field `completion`".into()),
        _ => {
            Err("`prompt` and `completion` are neither two texts nor two lists of messages".into())
        }
    }
}

fn pair(question: &str, answer: &str) -> Vec<Json> {
    vec![
        json!({ "role": "user", "content": question }),
        json!({ "role": ASSISTANT, "content": answer }),
    ]
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
        Some(_) => Err(format!("`{name}` is not a text")),
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
    let rest = history(fields)?.into_iter().chain(pair(&question, output));
    Ok(system(fields)?.into_iter().chain(rest).collect())
}

/// Earlier questions and answers: `[[question, answer], …]`, or none.
fn history(fields: &Map<String, Json>) -> Result<Vec<Json>, String> {
    let wrong = "`history` is not a list of pairs of texts, `[[question, answer], …]`";
    let pairs = match fields.get("history") {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(pairs) => pairs.as_array().ok_or(wrong)?,
    };
    let messages = |turns: &Json| match turns.as_array().map(Vec::as_slice) {
        Some([Json::String(question), Json::String(answer)]) => Ok(pair(question, answer)),
        _ => Err(wrong.to_owned()),
    };
    Ok(pairs.iter().map(messages).collect::<Result<Vec<_>, _>>()?.concat())
}
