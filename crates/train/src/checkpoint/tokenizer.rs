//! Tokenizer files that a run may have trained without: the byte tokenizer's, and the one that says how to read a `tokenizer.json`.

use std::io;
use std::path::Path;

use annulus_data::{Tokenizer, byte_tokenizer};
use annulus_experiment::{Experiment, Shape};
use annulus_files::hugging_face::{TOKENIZER, TOKENIZER_CONFIG};
use serde_json::json;

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
        "tokenizer_class": "PreTrainedTokenizerFast",
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
