//! config.json under its own names.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use crate::problem::Report;
use crate::source::Source;
use crate::tree::{Node, Value};
use crate::{Dtype, Places, Problem, Problems, build, extract, later, load, tree};

const SPECIAL_TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The shape of a Llama as config.json has it, read strictly.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// `hidden_size`
    pub hidden_size: usize,
    /// `intermediate_size`
    pub intermediate_size: usize,
    /// `num_hidden_layers`
    pub num_hidden_layers: usize,
    /// `num_attention_heads`
    pub num_attention_heads: usize,
    /// `num_key_value_heads`; default `num_attention_heads`
    pub num_key_value_heads: usize,
    /// `head_dim`; default `hidden_size / num_attention_heads`
    pub head_dim: usize,
    /// `vocab_size`; inline default: what the tokenizer has
    pub vocab_size: Option<usize>,
    /// `max_position_embeddings`; default: `data.tokens`
    pub max_position_embeddings: Option<usize>,
    /// `rms_norm_eps`; default 1e-5, and 1e-6 in a config.json, as `transformers` has it
    pub rms_norm_eps: f64,
    /// `rope_theta`, or `rope_parameters.rope_theta`; default 10000
    pub rope_theta: f64,
    /// `tie_word_embeddings`; default false
    pub tie_word_embeddings: bool,
    /// `attention_bias`; default false
    pub attention_bias: bool,
    /// `mlp_bias`; default false
    pub mlp_bias: bool,
    /// `initializer_range`; default 0.02
    pub initializer_range: f64,
    /// `bos_token_id`, `eos_token_id`, `pad_token_id` where a config.json has them: handed on, so
    /// that a trained model still knows where to stop.
    pub special_tokens: BTreeMap<String, serde_json::Value>,
}

impl Shape {
    /// The base of the rotary frequencies where none is given.
    pub const ROPE_THETA: f64 = 10_000.0;

    /// Inverse frequencies of the rotary embedding, `head_dim / 2` of them, radians per position:
    /// `theta ^ (-2 i / head_dim)`.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let width = self.head_dim as f64;
        let frequency = |i: usize| self.rope_theta.powf(-2.0 * i as f64 / width) as f32;
        (0..self.head_dim / 2).map(frequency).collect()
    }
}

/// Reads `folder/config.json`. What a later version will read (other `model_type`s, `rope_type`s,
/// windows) is refused by its key.
pub fn read_config(folder: &Path) -> Result<Shape, Problems> {
    let path = folder.join("config.json");
    parse_config(&path.display().to_string(), &load::read_text(&path)?)
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
    if !is_llama(&root, &mut report) {
        return Err(report.finish());
    }
    let values = extract::shape(&root, &mut report);
    later::refuse(&root, &mut report);
    let rope_theta = later::rope_theta(&root, &mut report);
    if !values.typed.contains_key("vocab_size") && !values.refused.contains("vocab_size") {
        report.at(root.span, || (String::from("`vocab_size` is missing"), None));
    }
    let places = Places::new(report.sources.clone(), values.spans.clone());
    let shape = build::shape(&values, "", rope_theta).map(|shape| Shape {
        rms_norm_eps: if root.entry("rms_norm_eps").is_some() { shape.rms_norm_eps } else { 1e-6 },
        special_tokens: special_tokens(text),
        ..shape
    });
    report.extend(shape.iter().flat_map(|shape| consistent(shape, &places, "")));
    match shape {
        Some(shape) if report.is_empty() => Ok(shape),
        _ => Err(report.finish()),
    }
}

fn special_tokens(text: &str) -> BTreeMap<String, serde_json::Value> {
    let config: serde_json::Map<_, _> = serde_json::from_str(text).unwrap_or_default();
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

/// Other families have other keys: their mistakes would mislead.
fn is_llama(root: &Node, report: &mut Report) -> bool {
    const WANTED: &str = "this version supports `llama`";
    match root.entry("model_type") {
        Some(entry) if entry.value.value.is_word("llama") => return true,
        Some(entry) => report.at(entry.value.span, || {
            let found = entry.value.value.found();
            (format!("`model_type` is {found}: {WANTED}"), None)
        }),
        None => report.at(root.span, || (format!("`model_type` is missing: {WANTED}"), None)),
    }
    false
}

/// What the sizes must be to each other, `prefix` being where their keys stand.
pub(crate) fn consistent(shape: &Shape, places: &Places, prefix: &str) -> Vec<Problem> {
    let key = |name: &str| format!("{prefix}{name}");
    let (hidden, heads) = (shape.hidden_size, shape.num_attention_heads);
    let mut problems = Vec::new();
    if !places.contains(&key("head_dim")) && !hidden.is_multiple_of(heads) {
        let message = format!("{hidden} of `hidden_size` cannot be dealt to {heads} heads");
        let problem = places.problem(&key("num_attention_heads"), message);
        problems.push(problem.hint("choose a divisor, or give `head_dim`"));
    } else if !shape.head_dim.is_multiple_of(2) {
        let message = format!(
            "`{}` is {}: rotary embeddings turn pairs of elements",
            key("head_dim"),
            shape.head_dim
        );
        let at = if places.contains(&key("head_dim")) { "head_dim" } else { "num_attention_heads" };
        problems.push(places.problem(&key(at), message).hint("make it even"));
    }
    let groups = shape.num_key_value_heads;
    if !heads.is_multiple_of(groups) {
        let message = format!("{heads} query heads cannot share {groups} key/value heads evenly");
        let problem = places.problem(&key("num_key_value_heads"), message);
        problems.push(problem.hint(format!("choose a divisor of {heads}")));
    }
    problems
}

/// The text of a config.json for `transformers` 4 and 5: `dtype` is `float32` or `bfloat16`. Both
/// versions' names are written: `rope_theta` and `rope_parameters`, `torch_dtype` and `dtype`.
pub fn write_config(shape: &Shape, dtype: Dtype) -> String {
    let dtype = match dtype {
        Dtype::F32 => "float32",
        Dtype::Bf16 => "bfloat16",
    };
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": shape.attention_bias,
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
        "mlp_bias": shape.mlp_bias,
        "model_type": "llama",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "pad_token_id": null,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": { "rope_theta": shape.rope_theta, "rope_type": "default" },
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "torch_dtype": dtype,
        "use_cache": true,
        "vocab_size": shape.vocab_size,
    });
    for (key, value) in &shape.special_tokens {
        config[key.as_str()] = value.clone();
    }
    format!("{config:#}\n")
}
