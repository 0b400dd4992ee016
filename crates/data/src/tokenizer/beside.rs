//! Tokens that are named beside a `tokenizer.json` and not in it. Transformers adds them when it loads the folder; here they would be
//! spelled letter by letter, and a document would have no end.

use std::path::{Path, PathBuf};

use annulus_files::hugging_face::{ADDED_TOKENS, SPECIAL_TOKENS, TOKENIZER_CONFIG};
use serde_json::Value as Json;

use crate::DataError;
use crate::chat::parsed;

/// Where `tokenizer_config.json` has them.
const DECODER: &str = "added_tokens_decoder";

/// Lists of tokens, or objects of them by their names.
const LISTS: [&str; 3] =
    ["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"];

/// Tokens that no text has: many a folder names one that its tokenizer lacks.
const IDLE: [&str; 5] = ["unk_token", "pad_token", "mask_token", "cls_token", "sep_token"];

/// Holds the `tokenizer.json` at `path`, which has a token if `has` says so, to the files beside it.
///
/// # Errors
/// The first token that it lacks, or a file beside it that cannot be read.
pub(super) fn check(path: &Path, has: &dyn Fn(&str) -> bool) -> Result<(), DataError> {
    let [config_file, map_file, added_file] =
        [TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS].map(|name| path.with_file_name(name));
    let config = parsed_json(&config_file)?;
    let lacking = |file: PathBuf, tokens: Vec<&str>| {
        let lacks = |token: &&str| !token.is_empty() && !has(token);
        match tokens.into_iter().find(lacks) {
            None => Ok(()),
            Some(token) => {
                let (tokenizer, token) = (path.to_owned(), token.to_owned());
                Err(DataError::Lacking { tokenizer, token, file })
            }
        }
    };
    let decoder = config[DECODER].as_object();
    let is_padding = |token: &&str| IDLE.iter().any(|name| text(&config[*name]) == Some(*token));
    let tokens = decoder.into_iter().flatten().filter_map(|(_, token)| token["content"].as_str());
    let tokens = tokens.filter(|token| !is_padding(token));
    lacking(config_file, tokens.chain(named(&config)).collect())?;
    if decoder.is_some() {
        // Transformers reads no other file then.
        return Ok(());
    }
    let (map, added) = (parsed_json(&map_file)?, parsed_json(&added_file)?);
    lacking(map_file, named(&map))?;
    let is_idle = |token: &&str| {
        let is = |file: &Json, name| text(&file[name]) == Some(*token);
        IDLE.iter().any(|name| is(&config, name) || is(&map, name))
    };
    let tokens = added.as_object().into_iter().flat_map(|tokens| tokens.keys());
    lacking(added_file, tokens.map(String::as_str).filter(|token| !is_idle(token)).collect())
}

/// The JSON of a file beside a tokenizer.
fn parsed_json(path: &Path) -> Result<Json, DataError> {
    parsed(path).map_err(|error| match error {
        DataError::Template { path, message } => DataError::Tokenizer { path, message },
        other => other,
    })
}

/// The tokens that a file names and texts may have.
fn named(file: &Json) -> Vec<&str> {
    let mut tokens = Vec::new();
    for (name, value) in file.as_object().into_iter().flatten() {
        let name = name.as_str();
        match value {
            Json::Array(list) if LISTS.contains(&name) => {
                tokens.extend(list.iter().filter_map(text));
            }
            Json::Object(map) if LISTS.contains(&name) => {
                tokens.extend(map.values().filter_map(text));
            }
            value if name.ends_with("_token") && !IDLE.contains(&name) => {
                tokens.extend(text(value));
            }
            _ => {}
        }
    }
    tokens
}

/// A token: a text, or an object with `content`.
fn text(token: &Json) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}
