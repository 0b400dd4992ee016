//! Conversations to text, by the tokenizer's own chat template, with the parts that the assistant says.
//!
//! Which parts those are is told by the template, if it has `{% generation %}` as transformers wants it
//! (`return_assistant_tokens_mask`). One that has not is rendered turn by turn ([`turns`]).

mod jinja;
mod json;
mod learned;
mod parts;
mod python;
mod shapes;
mod source;
mod template;
mod tools;
mod turns;

pub(crate) use shapes::SHAPES;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use annulus_files::hugging_face::{CHAT_TEMPLATE, SPECIAL_TOKENS, TOKENIZER_CONFIG};
use serde_json::{Value as Json, json};

use template::{NAME, Template, within_bounds};

use crate::files::{described, object, read_error};
use crate::texts::COLUMN;
use crate::{DataError, Tokenizer};

/// Who may speak.
const ROLES: [&str; 7] =
    ["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// Whose words are learned.
const ASSISTANT: &str = "assistant";

/// What stands around the assistant's words in a rendered text: no characters, by Unicode's own rule.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// The longest file of a template, or of what is beside it, in bytes.
const LONGEST: u64 = 1 << 24;

/// A chat template, ready to render.
#[derive(Debug)]
pub struct Chat {
    template: Arc<Template>,
    /// Whether the template says itself what the assistant says.
    marked: bool,
    hash: blake3::Hash,
}

/// A conversation as text, and where in it, in bytes, the assistant speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text, with everything that the template adds.
    pub text: String,
    /// The assistant's parts, in order.
    pub learned: Vec<Range<usize>>,
}

impl Chat {
    /// The template beside the tokenizer's file: `chat_template.jinja`, or `chat_template` in
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// No template there, or one that cannot be read.
    pub fn open(tokenizer: &Tokenizer) -> Result<Chat, DataError> {
        let Tokenizer::Json(json) = tokenizer else {
            return Err(DataError::NoTemplate { path: None });
        };
        let config = json.path.with_file_name(TOKENIZER_CONFIG);
        let about = read_config(&config)?;
        let alone = json.path.with_file_name(CHAT_TEMPLATE);
        let (path, template) = match (read(&alone)?, template(&about)) {
            (Some(text), _) => (alone, text),
            (None, Some(text)) => (config, text.to_owned()),
            (None, None) => return Err(DataError::NoTemplate { path: Some(config) }),
        };
        Chat::new(&template, specials(&about))
            .map_err(|message| DataError::Template { path, message })
    }

    /// Of the template's text. The hash is also of how it is rendered: where that changes, tokens that were made before are others.
    fn new(template: &str, special: BTreeMap<String, String>) -> Result<Chat, String> {
        let (source, marked) = source::prepared(template);
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"rendering 6\0").update(source.as_bytes());
        for (name, token) in &special {
            hasher.update(format!("\0{name}\0{token}").as_bytes());
        }
        let template = Template::new(source, special)?;
        Ok(Chat { template, marked, hash: hasher.finalize() })
    }

    /// Whether the template itself says what the assistant says, by `{% generation %}`; else it is
    /// rendered turn by turn.
    pub fn is_marked(&self) -> bool {
        self.marked
    }

    /// What rendered texts are a function of.
    pub(crate) fn hash(&self) -> &blake3::Hash {
        &self.hash
    }

    /// Renders `line`, `{"messages": [{"role": …, "content": …}, …]}` or one of the other [shapes]; else what is wrong
    /// with it.
    pub(crate) fn render(&self, line: &str) -> Result<Rendered, String> {
        object(line)?;
        json::exact(line)?;
        let record: Json = serde_json::from_str(line).map_err(|error| described(&error))?;
        let mut record = shapes::with_messages(record)?;
        record.get_mut("messages").map_or(Ok(()), parts::join)?;
        let messages = messages(&record)?;
        let tools = tools::of(&record)?;
        if messages.iter().chain([&tools]).any(|part| part.to_string().contains(MARKS)) {
            return Err(format!(
                "it holds {:?} or {:?}, which are not characters",
                MARKS[0], MARKS[1]
            ));
        }
        let messages = messages.to_vec();
        let (template, is_marked) = (self.template.clone(), self.marked);
        within_bounds(line.len(), move || {
            let render = |messages: &[Json], invite| template.text(&tools, messages, invite);
            if is_marked {
                return marked(&render(&messages, false)?, &messages);
            }
            turns::rendered(&messages, &render)
        })
    }
}

/// The fields by which records of conversations are told, of which each has one.
pub(crate) const CONVERSATION_FIELDS: [&str; 4] =
    ["messages", "conversations", "instruction", "prompt"];

/// What is said of a record that is no conversation but a text.
pub(crate) const IS_TEXT: &str = ", but it has `text`";

/// The record's messages, each of a known role, one at least the assistant's.
fn messages(record: &Json) -> Result<&[Json], String> {
    let Some(messages) = record.get("messages") else {
        let missing = "missing field `messages`, `conversations`, `instruction` or `prompt`";
        let has_text = record.get(COLUMN).is_some();
        return Err(missing.to_owned() + if has_text { IS_TEXT } else { "" });
    };
    let Some(messages) = messages.as_array().filter(|messages| !messages.is_empty()) else {
        return Err("`messages` is not a list of messages".into());
    };
    for (index, message) in messages.iter().enumerate() {
        check_message(index + 1, message)?;
    }
    if !messages.iter().any(says) {
        return Err("no message is the `assistant`'s: there is nothing to learn".into());
    }
    if !messages.iter().any(learned::is_learned) {
        return Err(
            "no message of the `assistant`'s is to be learned, by its `weight` or `train`".into()
        );
    }
    Ok(messages)
}

/// Holds the `turn`-th message, from 1, to what a template can render.
fn check_message(turn: usize, message: &Json) -> Result<(), String> {
    let role = match &message["role"] {
        Json::String(role) => role,
        Json::Null => return Err(format!("message {turn} has no `role`")),
        other => return Err(format!("the role of message {turn} is {other}, expected a text")),
    };
    if !ROLES.contains(&role.as_str()) {
        let known = ROLES.map(|role| format!("`{role}`")).join(", ");
        return Err(format!("the role of message {turn} is `{role}`, expected one of {known}"));
    }
    learned::check(turn, message)?;
    let calls = tools::calls(message).map_err(|found| {
        format!("the `tool_calls` of message {turn} are {found}, expected a list of objects")
    })?;
    match &message["content"] {
        Json::String(_) => Ok(()),
        Json::Null if calls => Ok(()),
        Json::Null => Err(format!("message {turn} has no `content`")),
        other => Err(format!("the content of message {turn} is {}, expected a text", kind(other))),
    }
}

fn says(message: &Json) -> bool {
    message["role"] == ASSISTANT
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
        Json::Bool(_) => "true or false",
        Json::String(_) => "a text",
        Json::Null => "null",
        Json::Number(_) => "a number",
    }
}

/// Takes the marks out of a text of `messages`.
fn marked(text: &str, messages: &[Json]) -> Result<Rendered, String> {
    let mut rendered = Rendered { text: String::with_capacity(text.len()), learned: Vec::new() };
    for (index, part) in text.split(MARKS).enumerate() {
        let start = rendered.text.len();
        rendered.text.push_str(part);
        if index % 2 == 1 {
            rendered.learned.push(start..rendered.text.len());
        }
    }
    let found = rendered.learned.len();
    let said: Vec<&Json> = messages.iter().filter(|message| says(message)).collect();
    if !said.iter().all(|message| learned::is_learned(message)) {
        if found != said.len() {
            return Err(format!(
                "the template renders {found} `{{% generation %}}` for {} messages of the assistant, \
                 which does not tell those that are not to be learned",
                said.len()
            ));
        }
        let mut said = said.iter();
        rendered
            .learned
            .retain(|_| said.next().is_some_and(|message| learned::is_learned(message)));
    }
    rendered.learned.retain(|part| !part.is_empty());
    if rendered.learned.is_empty() {
        return Err("the template renders nothing between its `{% generation %}` and \
                    `{% endgeneration %}`"
            .into());
    }
    Ok(rendered)
}

/// The template in a `tokenizer_config.json`: a text, or of several the one called `default`.
fn template(config: &Json) -> Option<&str> {
    let found = &config[NAME];
    found.as_str().or_else(|| {
        let named = found.as_array()?.iter().find(|template| template["name"] == "default")?;
        named["template"].as_str()
    })
}

/// A `tokenizer_config.json`, with the special tokens that only a `special_tokens_map.json` beside it names, as older programs write
/// them; null: there is neither.
pub(crate) fn read_config(path: &Path) -> Result<Json, DataError> {
    let (mut config, map) = (parsed(path)?, parsed(&path.with_file_name(SPECIAL_TOKENS))?);
    for (name, token) in map.as_object().into_iter().flatten() {
        if name.ends_with("_token") && config.get(name).is_none() {
            match &mut config {
                Json::Object(fields) => drop(fields.insert(name.clone(), token.clone())),
                Json::Null => config = json!({ name: token }),
                _ => {}
            }
        }
    }
    Ok(config)
}

/// The JSON in a file; null: there is none.
pub(crate) fn parsed(path: &Path) -> Result<Json, DataError> {
    let Some(text) = read(path)? else { return Ok(Json::Null) };
    let broken = |error: serde_json::Error| DataError::Template {
        path: path.to_owned(),
        message: error.to_string(),
    };
    serde_json::from_str(&text).map_err(broken)
}

/// `bos_token` and its like: texts, or objects with `content`.
pub(crate) fn specials(config: &Json) -> BTreeMap<String, String> {
    let fields = config.as_object().into_iter().flatten();
    let tokens = fields.filter(|(name, _)| name.ends_with("_token"));
    let text = |value: &Json| value.as_str().or(value["content"].as_str()).map(str::to_owned);
    tokens.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

fn read(path: &Path) -> Result<Option<String>, DataError> {
    // Somebody else may have made the folder: a link out of it is not followed.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let found = annulus_files::within(path.parent().unwrap_or(Path::new("")), &name);
    match found.and_then(|found| annulus_files::read_to_string(&found, LONGEST)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(read_error(path, source)),
    }
}
