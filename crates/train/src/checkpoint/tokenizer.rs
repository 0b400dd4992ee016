//! Tokenizer files that a run may have trained without: the byte tokenizer's, and the one that says how to read a `tokenizer.json`.

use std::io;
use std::path::Path;

use annulus_data::{Tokenizer, byte_tokenizer};
use annulus_experiment::{Experiment, Shape};
use annulus_files::hugging_face::{TOKENIZER, TOKENIZER_CONFIG};
use serde_json::{Map, Value, json};

/// The class of all tokenizers that `transformers` 5 saves, which version 4 does not have; ...
const LATER_CLASS: &str = "TokenizersBackend";
/// ... and the name by which both know it.
const CLASS: &str = "PreTrainedTokenizerFast";

/// The text of a `tokenizer_config.json` with a class that `transformers` 4 loads, too.
pub(crate) fn for_both_versions(text: Vec<u8>) -> Vec<u8> {
    const KEY: &str = "tokenizer_class";
    let Ok(mut settings) = serde_json::from_slice::<Map<String, Value>>(&text) else { return text };
    if settings.get(KEY).and_then(Value::as_str) != Some(LATER_CLASS) {
        return text;
    }
    settings.insert(KEY.to_owned(), json!(CLASS));
    format!("{:#}\n", Value::Object(settings)).into_bytes()
}

/// The tokenizer files that are missing beside `tokenizer`, a `tokenizer.json` if there is one, as names and texts; `is_said`: there is a
/// file that says how to read it.
pub(crate) fn missing(
    tokenizer: Option<&Path>,
    is_said: bool,
    experiment: &Experiment,
    shape: &Shape,
) -> io::Result<Vec<(&'static str, String)>> {
    if !experiment.data.format.is_text() || is_said {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    let (begin, end);
    if let Some(path) = tokenizer {
        let tokenizer = Tokenizer::open(&path.to_string_lossy()).map_err(io::Error::other)?;
        (begin, end) = tokenizer.special();
    } else if let Some(bytes) = byte_tokenizer(shape.vocab_size.unwrap_or_default()) {
        files.push((TOKENIZER, bytes.text));
        (begin, end) = (None, bytes.end);
    } else {
        return Ok(files);
    }
    let mut config = json!({
        // Any other class adds steps of its own.
        "tokenizer_class": CLASS,
        "clean_up_tokenization_spaces": false,
        // Version 4 gives types of tokens besides, which no Llama takes.
        "model_input_names": ["input_ids", "attention_mask"],
    });
    for (key, token) in [("bos_token", begin), ("eos_token", end)] {
        if let Some(token) = token {
            config[key] = json!(token);
        }
    }
    if let Some(positions) = shape.max_position_embeddings {
        config["model_max_length"] = json!(positions);
    }
    files.push((TOKENIZER_CONFIG, format!("{config:#}\n")));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_transformers_5_is_named_as_4_knows_it() {
        let text = br#"{ "backend": "tokenizers", "tokenizer_class": "TokenizersBackend" }"#;
        let found: Value = serde_json::from_slice(&for_both_versions(text.to_vec())).unwrap();
        assert_eq!(found, json!({ "backend": "tokenizers", "tokenizer_class": CLASS }));
        // Of others not a byte is changed.
        for text in [r#"{"tokenizer_class":  "LlamaTokenizerFast"}"#, "{}", "no JSON"] {
            assert_eq!(for_both_versions(text.into()), text.as_bytes());
        }
    }
}
