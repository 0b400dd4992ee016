//! config.json under its own names: read strictly, written for both generations of `transformers`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::problem::Report;
use crate::source::Source;
use crate::tree::{Node, Value};
use crate::typed::Typed;
use crate::{
    Dtype, Family, LayerType, ModelSource, Places, Problem, Problems, Scaling, Shape, extract,
    later, load, shape, tree,
};

const NAME: &str = "config.json";

const SPECIAL_TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

impl ModelSource {
    /// The shape as it is written, here or in the folder.
    ///
    /// # Errors
    /// What is wrong with the folder's config.json.
    pub fn shape(&self) -> Result<Shape, Problems> {
        match self {
            ModelSource::Folder { path, .. } => read_config(path),
            ModelSource::Inline(shape) => Ok(Shape::clone(shape)),
        }
    }
}

/// Reads `folder/config.json`. What is not computed (other families, `rope_type`s, activations) is
/// refused by its key.
pub fn read_config(folder: &Path) -> Result<Shape, Problems> {
    let path = folder.join(NAME);
    parse_config(&path.display().to_string(), &load::read_within(folder, NAME)?)
}

/// The same from text; `name` is what errors call the file.
pub fn parse_config(name: &str, text: &str) -> Result<Shape, Problems> {
    let mut report = Report::new(vec![Source::file(name, text)]);
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        return Err(invalid(name, text, &error).into());
    }
    let root = tree::read(&mut report, 0, 0);
    let Some(root) = root.filter(|root| matches!(root.value, Value::Mapping(_))) else {
        if report.is_empty() {
            return Err(Problem::new(format!("`{name}` holds no JSON object")).into());
        }
        return Err(report.finish());
    };
    let Some(family) = family(&root, &mut report) else { return Err(report.finish()) };
    let values = extract::shape(&root, &mut report);
    later::refuse(&root, &mut report);
    for key in ["vocab_size"].iter().chain(family.wants()) {
        if root.entry(key).is_none() {
            report.at(root.span, || (format!("`{key}` is missing"), None));
        }
    }
    let places = Places::new(report.sources.clone(), values.spans.clone());
    report.extend(shape::contradictions(&values, "", &places));
    let shape = shape::shape(&values, "", &places).map(|shape| Shape {
        rms_norm_eps: if root.entry("rms_norm_eps").is_some() { shape.rms_norm_eps } else { 1e-6 },
        special_tokens: special_tokens(text),
        ..shape
    });
    report.extend(shape.iter().flat_map(|shape| shape::consistent(shape, &places, "")));
    match shape {
        Some(shape) if report.is_empty() => Ok(shape),
        _ => Err(report.finish()),
    }
}

fn special_tokens(text: &str) -> BTreeMap<String, Json> {
    let config: Map<_, _> = serde_json::from_str(text).unwrap_or_default();
    let special = |key: &str| SPECIAL_TOKENS.contains(&key);
    config.into_iter().filter(|(key, value)| special(key) && !value.is_null()).collect()
}

fn invalid(name: &str, text: &str, error: &serde_json::Error) -> Problem {
    let start: usize =
        text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = start + error.column().saturating_sub(1);
    let span = crate::source::Span { source: 0, start: at, end: at };
    let full = error.to_string();
    let what = full.split(" at line ").next().unwrap_or(&full);
    Problem {
        message: format!("invalid JSON: {what}"),
        place: Some(Source::file(name, text).show(span)),
        hint: None,
    }
}

/// Unknown families have other keys: their mistakes would mislead.
fn family(root: &Node, report: &mut Report) -> Option<Family> {
    let wanted = format!("this version supports `{}`", Family::WORDS.join("`, `"));
    let Some(entry) = root.entry("model_type") else {
        report.at(root.span, || (format!("`model_type` is missing: {wanted}"), None));
        return None;
    };
    let word = Family::WORDS.iter().find(|word| entry.value.value.is_word(word));
    if word.is_none() {
        report.at(entry.value.span, || {
            let found = entry.value.value.found();
            (format!("`model_type` is {found}: {wanted}"), None)
        });
    }
    Family::from_word(word?)
}

/// The text of a config.json for `transformers` 4 and 5: `dtype` is `float32` or `bfloat16`. Both
/// versions' names are written, and mean the same: `rope_parameters` is the newer one's, `rope_theta`
/// and `rope_scaling` are the older one's, and so are `dtype` and `torch_dtype`.
pub fn write_config(shape: &Shape, dtype: Dtype) -> String {
    let dtype = match dtype {
        Dtype::F32 => "float32",
        Dtype::Bf16 => "bfloat16",
    };
    let mut config = json!({
        "architectures": [shape.model_type.architecture()],
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "dtype": dtype,
        "eos_token_id": null,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": shape.initializer_range,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "model_type": shape.model_type.word(),
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "pad_token_id": null,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope.theta,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "torch_dtype": dtype,
        "use_cache": true,
        "vocab_size": shape.vocab_size,
    });
    let more = of_family(shape).into_iter().chain(of_rope(shape));
    for (key, value) in more.chain(shape.special_tokens.clone()) {
        config[key.as_str()] = value;
    }
    config.sort_all_objects();
    format!("{config:#}\n")
}

/// The keys of the family alone.
fn of_family(shape: &Shape) -> Map<String, Json> {
    let family = shape.model_type;
    let mut config = Map::new();
    let mut put = |key: &str, value: Json| drop(config.insert(key.to_owned(), value));
    if family == Family::Llama {
        put("pretraining_tp", json!(1));
    }
    if family.has_attention_bias() {
        put("attention_bias", json!(shape.attention_bias));
    }
    if family.has_mlp_bias() {
        put("mlp_bias", json!(shape.mlp_bias));
    }
    if family != Family::Llama {
        put("sliding_window", json!(shape.sliding_window));
    }
    if family.has_layer_types() {
        let words: Vec<&str> = shape.layer_types.iter().map(|kind| kind.word()).collect();
        let first = shape.layer_types.iter().position(|kind| *kind == LayerType::Sliding);
        put("layer_types", json!(words));
        put("max_window_layers", json!(first.unwrap_or(shape.num_hidden_layers)));
        put("use_sliding_window", json!(shape.sliding_window.is_some()));
    }
    config
}

/// `rope_parameters`, and the same as `rope_scaling` where there is any.
fn of_rope(shape: &Shape) -> Map<String, Json> {
    let scaling = &shape.rope.scaling;
    let mut section = Map::from_iter([(String::from("rope_type"), json!(scaling.word()))]);
    let entries = scaling.parameters().entries().into_iter();
    section.extend(entries.map(|(key, value)| (key.to_owned(), json_of(&value))));
    let mut config = Map::new();
    if *scaling != Scaling::Default {
        config.insert(String::from("rope_scaling"), Json::Object(section.clone()));
    }
    if let Scaling::LongRope { original, .. } = scaling {
        // Where version 4 looks for it.
        config.insert(String::from("original_max_position_embeddings"), json!(original));
    }
    section.insert(String::from("rope_theta"), json!(shape.rope.theta));
    config.insert(String::from("rope_parameters"), Json::Object(section));
    config
}

fn json_of(value: &Typed) -> Json {
    match value {
        Typed::Truth(truth) => json!(truth),
        Typed::Count(count) => json!(count),
        Typed::Real(real) => json!(real),
        Typed::Reals(reals) => json!(reals),
        other => json!(other.to_string()),
    }
}
