//! Reads and writes config.json: read strictly, written for both generations of `transformers`.

use std::collections::BTreeMap;
use std::path::Path;

use annulus_yaml::{
    Document, Key, Node, Problem, Problems, Report, Section as _, Source, Span, Value, read_within,
};
use serde_json::{Map, Value as Json, json};

use crate::peft::ADAPTER;
use crate::{Dtype, Family, LayerType, Scaling, Shape, ShapeKeys, TopLevelKeys, later, shape_of};

const NAME: &str = "config.json";
/// The config.json of an extended model beside whose weights there are adapters, under a name of its own: `transformers` takes a folder with
/// a config.json for a whole model.
pub const ADAPTED: &str = "model_config.json";

/// The default of `rms_norm_eps` in a config.json, as in `transformers`.
const RMS_NORM_EPS: f64 = 1e-6;

const SPECIAL_TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// Reads `folder/config.json`. Anything that is not supported (other families, `rope_type`s, activations) is refused by its key.
///
/// # Errors
/// All mistakes in it, by key.
pub fn read_config(folder: &Path) -> Result<Shape, Problems> {
    let path = folder.join(NAME);
    if !path.exists() && folder.join(ADAPTER).is_file() {
        let message = format!("`{}` holds adapters without their model", folder.display());
        let hint = "name the model that they were trained on, and the adapters by `lora.path` or `--adapter`; `annulus export --merge` joins both";
        return Err(Problem::new(message).hint(hint).into());
    }
    parse_config(&path.display().to_string(), &read_within(folder, NAME)?)
}

/// Whether a folder says of which shape the model of its weights, or of its adapters, is: [`read_saved_config`] reads it.
pub fn has_saved_config(folder: &Path) -> bool {
    [NAME, ADAPTED].iter().any(|name| folder.join(name).is_file())
}

/// The shape of the model of a checkpoint in `folder`: its config.json, or [`ADAPTED`] beside adapters.
///
/// # Errors
/// As [`read_config`].
pub fn read_saved_config(folder: &Path) -> Result<Shape, Problems> {
    if !folder.join(ADAPTED).is_file() {
        return read_config(folder);
    }
    let path = folder.join(ADAPTED);
    parse_config(&path.display().to_string(), &read_within(folder, ADAPTED)?)
}

/// The keys that are read.
const KEYS: &[&[Key]] = &[ShapeKeys::OWN, TopLevelKeys::OWN];

/// Parses the text of a config.json; errors call the file `name`.
///
/// # Errors
/// As [`read_config`].
pub fn parse_config(name: &str, text: &str) -> Result<Shape, Problems> {
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        return Err(invalid(name, text, &error).into());
    }
    let mut document = Document::parse(name, text, &[])?;
    if !matches!(document.root.value, Value::Mapping(_)) {
        return Err(Problem::new(format!("`{name}` is not a JSON object")).into());
    }
    let Some(family) = family(&document.root, &mut document.report) else {
        return Err(document.report.finish());
    };
    let values = document.values_of_others(KEYS, "a config.json");
    let places = document.places(&values);
    let Document { root, mut report } = document;
    later::refuse(&root, family, &mut report);
    for key in ["vocab_size"].iter().chain(family.wants()) {
        if root.entry(key).is_none() {
            report.at(root.span, || (format!("`{key}` is missing"), None));
        }
    }
    let keys = ShapeKeys::read(&values, "").zip(TopLevelKeys::read(&values, ""));
    let shape = keys.and_then(|(mut keys, top_level)| {
        if root.entry("rms_norm_eps").is_none() {
            keys.rms_norm_eps = RMS_NORM_EPS;
        }
        shape_of(&keys, &top_level, "", &places).map_err(|problems| report.extend(problems)).ok()
    });
    match shape {
        Some(shape) if report.is_empty() => {
            Ok(Shape { special_tokens: special_tokens(text), ..shape })
        }
        _ => Err(report.finish()),
    }
}

/// The ids at which generation ends by `folder/generation_config.json`; none where there is no such file, or it names none.
///
/// # Errors
/// A file that cannot be read, or is no JSON object.
pub fn generation_ends(folder: &Path) -> Result<Vec<u32>, Problems> {
    const NAME: &str = "generation_config.json";
    if !folder.join(NAME).is_file() {
        return Ok(Vec::new());
    }
    let text = read_within(folder, NAME)?;
    let path = folder.join(NAME);
    let settings: Map<String, Json> = serde_json::from_str(&text).map_err(|error| {
        Problem::new(format!("`{}` is not a JSON object: {error}", path.display()))
    })?;
    Ok(settings.get("eos_token_id").map(ids).unwrap_or_default())
}

/// Token ids where one or a list of them is written.
pub(crate) fn ids(written: &Json) -> Vec<u32> {
    let id = |value: &Json| u32::try_from(value.as_u64()?).ok();
    match written {
        Json::Array(all) => all.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
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
    let span = Span { source: 0, start: at, end: at };
    let full = error.to_string();
    let what = full.split(" at line ").next().unwrap_or(&full);
    let what = match what.strip_prefix("EOF while parsing ") {
        Some("a value") => "the file ends where a value is expected".to_owned(),
        Some(open) => format!("the file ends inside {open}"),
        None => what.to_owned(),
    };
    Problem {
        message: format!("invalid JSON: {what}"),
        place: Some(Source::file(name, text).show(span)),
        hint: Some(String::from("download or save the file again")),
    }
}

/// The family of a model. Unknown families have other keys, whose mistakes would mislead.
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
            let hint =
                "other families (mixture of experts, Gemma, DeepSeek and more) are not supported";
            (format!("`model_type` is {found}: {wanted}"), Some(hint.to_owned()))
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

/// The keys that only this family has.
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
        put("layer_types", json!(words));
        put("use_sliding_window", json!(shape.sliding_window.is_some()));
    }
    if let Some(layers) = shape.no_rope_layers() {
        put("no_rope_layers", json!(layers));
    } else if family.has_layer_types() {
        let first = shape.layer_types.iter().position(|kind| *kind == LayerType::Sliding);
        put("max_window_layers", json!(first.unwrap_or(shape.num_hidden_layers)));
    }
    config
}

/// `rope_parameters`, and the same as `rope_scaling` where frequencies are scaled.
fn of_rope(shape: &Shape) -> Map<String, Json> {
    let scaling = &shape.rope.scaling;
    let mut section = Map::from_iter([(String::from("rope_type"), json!(scaling.word()))]);
    if let Ok(Json::Object(parameters)) = serde_json::to_value(scaling.parameters()) {
        section.extend(parameters.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let mut config = Map::new();
    if *scaling != Scaling::Default {
        config.insert(String::from("rope_scaling"), Json::Object(section.clone()));
    }
    if let Scaling::LongRope { original, .. } = scaling {
        // Version 4 looks for the length here.
        config.insert(String::from("original_max_position_embeddings"), json!(original));
    }
    section.insert(String::from("rope_theta"), json!(shape.rope.theta));
    config.insert(String::from("rope_parameters"), Json::Object(section));
    config
}
