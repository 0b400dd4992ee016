//! From typed values to a shape: one line per key, and what the keys of a family say together.

use std::collections::BTreeMap;

use crate::source::Places;
use crate::values::Values;
use crate::{Family, LayerType, Problem, Shape, rope};

/// Layers before the first that slides, where nothing says it.
const WINDOW_LAYERS: usize = 28;

/// The shape whose keys stand under `prefix`, unless something that it needs was refused, or is
/// among [`contradictions`].
pub(crate) fn shape(values: &Values, prefix: &str, places: &Places) -> Option<Shape> {
    let key = |name: &str| format!("{prefix}{name}");
    let optional = |name: &str| values.optional(&key(name), Values::size);
    let hidden_size = values.size(&key("hidden_size"))?;
    let num_attention_heads = values.size(&key("num_attention_heads"))?;
    let num_hidden_layers = values.size(&key("num_hidden_layers"))?;
    let max_position_embeddings = optional("max_position_embeddings")?;
    let (sliding_window, layer_types) = windows(values, prefix, places).ok()?;
    Some(Shape {
        model_type: family(values, prefix)?,
        hidden_size,
        intermediate_size: values.size(&key("intermediate_size"))?,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: optional("num_key_value_heads")?.unwrap_or(num_attention_heads),
        head_dim: optional("head_dim")?.unwrap_or(hidden_size / num_attention_heads),
        vocab_size: optional("vocab_size")?,
        max_position_embeddings,
        rms_norm_eps: values.real(&key("rms_norm_eps"))?,
        rope: rope::read(values, prefix, places, max_position_embeddings).ok()?,
        sliding_window,
        layer_types,
        tie_word_embeddings: values.truth(&key("tie_word_embeddings"))?,
        attention_bias: values.truth(&key("attention_bias"))?,
        mlp_bias: values.truth(&key("mlp_bias"))?,
        initializer_range: values.real(&key("initializer_range"))?,
        special_tokens: BTreeMap::new(),
    })
}

fn family(values: &Values, prefix: &str) -> Option<Family> {
    values.word(&format!("{prefix}model_type"), Family::from_word)
}

/// Keys that do not go together, or not with the family.
pub(crate) fn contradictions(values: &Values, prefix: &str, places: &Places) -> Vec<Problem> {
    let key = |name: &str| format!("{prefix}{name}");
    let Some(family) = family(values, prefix) else { return Vec::new() };
    let longest = values.size(&key("max_position_embeddings"));
    let mut problems = rope::read(values, prefix, places, longest).err().unwrap_or_default();
    problems.extend(windows(values, prefix, places).err());
    let biases =
        [("attention_bias", family.has_attention_bias()), ("mlp_bias", family.has_mlp_bias())];
    for (name, known) in biases {
        if !known && values.truth(&key(name)) == Some(true) {
            let message = format!("`{}` is true, but no `{}` has it", key(name), family.word());
            problems.push(places.problem(&key(name), message).hint(format!("drop `{name}`")));
        }
    }
    problems
}

/// The window, and which layers have it.
fn windows(
    values: &Values,
    prefix: &str,
    places: &Places,
) -> Result<(Option<usize>, Vec<LayerType>), Problem> {
    let key = |name: &str| format!("{prefix}{name}");
    let layers = values.size(&key("num_hidden_layers")).unwrap_or_default();
    let window = values.size(&key("sliding_window"));
    let family = family(values, prefix).unwrap_or(Family::Llama);
    let slides = match family {
        Family::Llama | Family::Mistral => window.is_some(),
        Family::Qwen2 | Family::Qwen3 => {
            values.truth(&key("use_sliding_window")).unwrap_or_default()
        }
    };
    let problem = |name: &str, message: String| places.problem(&key(name), message);
    if family == Family::Llama && slides {
        let message = format!("`{}` is given, but no `llama` slides", key("sliding_window"));
        return Err(problem("sliding_window", message).hint("`model_type: mistral` does"));
    }
    if slides && window.is_none() {
        let message = format!("`{}` is missing beside `use_sliding_window`", key("sliding_window"));
        return Err(problem("use_sliding_window", message));
    }
    let usual = usual(values, prefix, slides, family);
    let Some(written) = values.words(&key("layer_types"), LayerType::from_word) else {
        return Ok((window.filter(|_| usual.contains(&LayerType::Sliding)), usual));
    };
    if written.len() != layers {
        let (types, found) = (key("layer_types"), written.len());
        let message = format!("`{types}` has {found} words, but the model has {layers} layers");
        return Err(problem("layer_types", message));
    }
    let any = written.contains(&LayerType::Sliding);
    let fits = if family.has_layer_types() { slides || !any } else { written == usual };
    if !fits {
        let said =
            if slides { "all layers of the model slide" } else { "no layer of the model slides" };
        let message = format!("`{}` says otherwise, but {said}", key("layer_types"));
        return Err(problem("layer_types", message));
    }
    Ok((window.filter(|_| any), written))
}

/// Which layers slide where no list says it.
fn usual(values: &Values, prefix: &str, slides: bool, family: Family) -> Vec<LayerType> {
    let size = |name: &str| values.size(&format!("{prefix}{name}"));
    let layers = size("num_hidden_layers").unwrap_or_default();
    let first = match (slides, family.has_layer_types()) {
        (false, _) => layers,
        (true, false) => 0,
        (true, true) => size("max_window_layers").unwrap_or(WINDOW_LAYERS),
    };
    let usual = |layer| if layer < first { LayerType::Full } else { LayerType::Sliding };
    (0..layers).map(usual).collect()
}
