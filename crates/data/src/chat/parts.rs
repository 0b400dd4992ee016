//! Contents that are lists of parts, as OpenAI has them, made into one text.

use serde_json::Value as Json;

use super::kind;

/// Joins the texts of messages whose content is `[{"type": "text", "text": …}, …]`; else what is wrong with one.
pub(super) fn join(messages: &mut Json) -> Result<(), String> {
    let messages = messages.as_array_mut().into_iter().flatten();
    for (index, message) in messages.enumerate() {
        let Some(content) = message.get_mut("content") else { continue };
        if let Json::Array(parts) = content {
            let text = parts.iter().enumerate().map(|(part, of)| text(index + 1, part + 1, of));
            *content = Json::String(text.collect::<Result<_, _>>()?);
        }
    }
    Ok(())
}

fn text(turn: usize, number: usize, part: &Json) -> Result<&str, String> {
    let named = format!("part {number} of the content of message {turn}");
    match (&part["type"], &part["text"]) {
        (Json::String(what), Json::String(text)) if what == "text" => Ok(text),
        (Json::String(what), _) if what == "text" => Err(format!("{named} has no `text`")),
        (Json::String(what), _) => Err(format!("{named} is of type `{what}`, expected `text`")),
        _ => Err(format!("{named} is {}, expected an object with `type` and `text`", kind(part))),
    }
}
